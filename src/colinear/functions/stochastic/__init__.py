"""Answers from random vectors: estimates of traces and diagonals, Lanczos quadrature,
`solve_and_logdet`."""
