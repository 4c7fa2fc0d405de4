"""Matrices in files: Matrix Market (`.mtx`, `.mtx.gz`), NumPy (`.npy`, `.npz`) and SciPy's sparse
`.npz`.

Nothing is ever unpickled. Whatever is wrong with a file is an `InputError` of one line.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from .answers import InputError

READABLE = (".mtx", ".mtx.gz", ".npy", ".npz")


def extension(path: str) -> str:
    """Which of the formats a name has, or an error."""
    for known in READABLE:
        if path.lower().endswith(known):
            return known
    raise InputError(
        f"{path}: cannot tell the format from the name; use one of {', '.join(READABLE)}"
    )


def read_matrix(path: str) -> Any:
    """A matrix: a NumPy array of two dimensions, or a SciPy sparse matrix of compressed rows;
    all entries finite."""
    matrix = read(path)
    if matrix.ndim != 2:
        raise InputError(
            f"{path}: an array of shape {tuple(matrix.shape)}; expected a matrix, which has two "
            "dimensions"
        )
    return matrix


def read_columns(path: str) -> Any:
    """A right side: a NumPy array of one or two dimensions; of one where the file holds a single
    column."""
    columns = read(path)
    if not isinstance(columns, np.ndarray):
        columns = columns.toarray()
    if columns.ndim not in (1, 2):
        raise InputError(
            f"{path}: an array of shape {tuple(columns.shape)}; expected a vector, or a matrix of "
            "columns"
        )
    return columns[:, 0] if columns.ndim == 2 and columns.shape[1] == 1 else columns


def read(path: str) -> Any:
    """The array or sparse matrix in a file; `-` for Matrix Market from standard input,
    `file.npz:name` for one array of several."""
    path, name = split(path)
    kind = ".mtx" if path == "-" else _check_file(path)
    try:
        if kind == ".npz":
            found = _read_npz(path, name)
        else:
            found = _read_npy(path) if kind == ".npy" else _read_market(path)
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(f"{path}: too large for the memory of this machine") from error
    except Exception as error:  # readers raise whatever they like: EOFError, IndexError, ...
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: not a readable {kind} file ({why})") from error
    return _checked(path, found)


def _check_file(path: str) -> str:
    """Refuse what is no file to be read; return its format."""
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file")
    if os.path.isdir(path):
        raise InputError(f"{path}: is a directory, not a file")
    kind = extension(path)
    if os.path.getsize(path) == 0:
        raise InputError(f"{path}: the file is empty")
    return kind


def split(path: str) -> tuple[str, str | None]:
    """The name of a file, and of one array in it: `file.npz:name`."""
    if path.endswith(".npz") or os.path.exists(path):
        return path, None
    head, colon, name = path.rpartition(":")
    return (head, name) if colon and head.lower().endswith(".npz") else (path, None)


def _read_market(path: str) -> Any:
    import scipy.io

    if path == "-":
        text = sys.stdin.buffer.read()
    else:
        with gzip.open(path) if path.lower().endswith(".gz") else open(path, "rb") as file:
            text = file.read()
    if not text.strip():
        raise InputError(f"{path}: the file is empty")
    if not text[:14].lower().startswith(b"%%matrixmarket"):
        raise InputError(f"{path}: not a Matrix Market file: it does not begin with %%MatrixMarket")
    return scipy.io.mmread(io.BytesIO(text))


def _read_npy(path: str) -> Any:
    try:
        found = np.load(path, allow_pickle=False)
    except ValueError as error:
        if "allow_pickle" in str(error) or "pickled" in str(error):
            raise InputError(
                f"{path}: holds Python objects, or is no .npy file; for safety nothing is unpickled"
            ) from error
        raise
    if not isinstance(found, np.ndarray):
        raise InputError(f"{path}: an archive of arrays; its name should end in .npz")
    return found


def _read_npz(path: str, name: str | None) -> Any:
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path}: not an .npz file, which is an archive of arrays")
    with np.load(path, allow_pickle=False) as archive:
        names = list(archive.files)
        if name is None and {"format", "shape", "data"} <= set(names):
            import scipy.sparse

            return scipy.sparse.load_npz(path)
        if name is None and len(names) != 1:
            advice = f"choose one, as in {path}:{names[0]}" if names else "there is nothing to read"
            raise InputError(
                f"{path}: holds {len(names)} arrays ({', '.join(names[:8])}); {advice}"
            )
        if name is not None and name not in names:
            raise InputError(f"{path}: has no array {name!r}; it holds {', '.join(names[:8])}")
        return archive[names[0] if name is None else name]


def _checked(path: str, found: Any) -> Any:
    """Return what was read as floating point, finite, dense or in compressed rows."""
    if found.dtype.kind not in "biufc":
        raise InputError(f"{path}: its entries are {found.dtype}; expected real or complex numbers")
    known = (np.float32, np.float64, np.complex64, np.complex128)
    # integers, half and extended precision, the other order of bytes
    if found.dtype not in known or not found.dtype.isnative:
        half, is_complex = found.dtype == np.float16, found.dtype.kind == "c"
        wide = np.complex128 if is_complex else np.float32 if half else np.float64
        found = found.astype(found.dtype.newbyteorder("=") if found.dtype in known else wide)
    if isinstance(found, np.ndarray):
        values = found = np.ascontiguousarray(found)
    else:
        from scipy.sparse import csr_array

        found = csr_array(found)
        values = found.data
    bad = np.count_nonzero(~np.isfinite(values))
    if bad:
        raise InputError(f"{path}: {bad} of its entries are NaN or infinite")
    return found


# ------------------------------------------------------------------ out


def check_target(path: str | None) -> None:
    """Refuse a name that cannot be written to before the work is done, rather than after."""
    if path is None or path == "-":
        return
    extension(path)
    check_folder(path)
    if os.path.isdir(path):
        raise InputError(f"{path}: is a directory, not a file")


def check_folder(path: str) -> None:
    """Refuse a name in a folder that is not there."""
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise InputError(f"{path}: there is no folder {folder}")


def write(path: str, array: Any, **named: Any) -> None:
    """Write an array; or several, by name, if it is None. `-` is standard output, in Matrix
    Market form."""
    if path == "-":
        sys.stdout.write(_market(array).decode())
        return
    kind, content = extension(path), io.BytesIO()
    if kind == ".npz":
        np.savez(content, **(named if array is None else {"x": array}))
    elif kind == ".npy":
        np.save(content, array, allow_pickle=False)
    else:
        content.write(gzip.compress(_market(array)) if kind == ".mtx.gz" else _market(array))
    partial = f"{path}.part"
    try:
        Path(partial).write_bytes(content.getvalue())
        os.replace(partial, path)  # never half a file
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error


def _market(array: Any) -> bytes:
    import scipy.io

    content = io.BytesIO()
    scipy.io.mmwrite(content, np.atleast_2d(array.T).T, precision=17)  # a vector is a column
    return content.getvalue()
