"""What functions return: operators that hold a factorisation, a solver or a function of a
matrix."""
