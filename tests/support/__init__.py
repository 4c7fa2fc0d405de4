"""What tests share: operators beside their matrices, frameworks, dtypes, devices, and the cases that suites enumerate."""
