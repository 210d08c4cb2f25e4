# Arrays: dtypes as text, sources, destinations and indices, checked against a variable.

def dtype_text(dtype):
    """A dtype as the text that all ranks compare; it names the byte order."""
    if dtype.hasobject:
        raise TypeError(f"dtype {dtype} holds Python objects, which have no bytes to store")
    if dtype.names is None and dtype.subdtype is None:
        if dtype.kind == "V" and dtype.type is not np.void:
            return dtype.name  # bfloat16 and its kin
        return dtype.str
    try:
        descr = np.lib.format.dtype_to_descr(dtype)
        if np.lib.format.descr_to_dtype(descr) == dtype:
            return repr(descr)
    except (ValueError, TypeError):
        pass
    return repr(_fields(dtype))  # out of order, or of dtypes that NumPy can't describe


def _fields(dtype):
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return (_fields(base), shape)
    if dtype.names is None:
        return dtype_text(dtype)
    fields = [dtype.fields[name] for name in dtype.names]
    return {"names": list(dtype.names), "formats": [_fields(f[0]) for f in fields],
            "offsets": [f[1] for f in fields], "itemsize": dtype.itemsize}


def dtype_of_text(text):
    """The dtype of such a text; None where NumPy alone has none (bfloat16)."""
    if not text:
        return None
    try:
        if text[0] in "[({":
            return _dtype_of_fields(ast.literal_eval(text))
        return _plain_dtype(text)
    except (TypeError, ValueError, SyntaxError, KeyError, ImportError, AttributeError):
        return None


def _plain_dtype(text):
    try:
        return np.dtype(text)
    except TypeError:
        import ml_dtypes
        return np.dtype(getattr(ml_dtypes, text))


def _dtype_of_fields(fields):
    if isinstance(fields, str):
        return _plain_dtype(fields)
    if isinstance(fields, dict):
        return np.dtype({**fields, "formats": [_dtype_of_fields(f)
                                               for f in fields["formats"]]})
    if isinstance(fields, tuple):
        return np.dtype((_dtype_of_fields(fields[0]), fields[1]))
    return np.lib.format.descr_to_dtype(fields)


cdef bint is_tensor(obj):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor)


cdef refuse_device(device):
    raise RuntimeError(
        f"memory of {device} can't be read or written here: this build serves host memory "
        "only; copy it to the host first (tensor.cpu())")


cdef tuple tensor_array(obj, bint source):
    """A CPU tensor as an array that shares its memory (a source: or is a copy), and the
    text of its dtype."""
    if obj.device.type != "cpu":
        refuse_device(f"a tensor on {obj.device}")
    torch = sys.modules["torch"]
    obj = obj.detach()
    if source:
        obj = obj.resolve_conj().resolve_neg().contiguous()
    if obj.dtype == torch.bfloat16:
        return obj.view(torch.int16).numpy(), "bfloat16"
    array = obj.numpy()
    return array, dtype_text(array.dtype)


cdef tuple source_array(obj):
    """Any source as a C-contiguous array of at least one dimension (a copy where it has
    to be) and the text of its dtype."""
    if is_tensor(obj):
        array, text = tensor_array(obj, True)
    else:
        if isinstance(obj, (bytes, memoryview)):
            obj = memoryview(obj)  # NumPy takes bytes for text, and a dead view for rows
        elif hasattr(type(obj), "__cuda_array_interface__"):
            refuse_device(f"a GPU ({type(obj).__name__})")
        array = np.asarray(obj)
        text = dtype_text(array.dtype)
    if array.ndim == 0:
        raise ValueError("a source needs at least one dimension, its rows")
    return np.ascontiguousarray(array), text


cdef class _Variable:
    """What a read looks up by name."""

    cdef c.ddstore_var *ptr
    cdef str name
    cdef object dtype       # numpy.dtype; None: untyped, or none of NumPy's own
    cdef object accepted    # a dtype that was checked before, to know it again at once
    cdef str text           # of the dtype; "": untyped
    cdef object row_shape   # of an array that was added here; None otherwise
    cdef int64_t total, local_rows
    cdef uint64_t disp, row_bytes
    cdef uint32_t itemsize


cdef int64_t row_number(obj, str what, _Variable v, int64_t rows) except? -1:
    """An index as int64; what lies outside is no row of anything."""
    cdef int overflow = 0
    cdef int64_t number
    if not PyLong_CheckExact(obj):
        if isinstance(obj, (bool, np.bool_)):
            raise TypeError(f"{what} is an integer, not {obj}")
        obj = operator.index(obj)
    number = PyLong_AsLongLongAndOverflow(obj, &overflow)
    if overflow:
        raise out_of_range(obj, what, v, rows)
    return number


cdef out_of_range(obj, str what, _Variable v, int64_t rows):
    return IndexError(f"{what} {obj} is out of range: variable {v.name!r} has {rows} rows")


cdef object index_array(indices, _Variable v):
    """Row numbers as a C-contiguous int64 array."""
    cdef object array
    if is_tensor(indices):
        array = indices.detach().cpu().numpy()
    elif isinstance(indices, range):
        if not indices:
            return np.empty(0, dtype=np.int64)
        for i in (indices[0], indices[len(indices) - 1]):
            row_number(i, "index", v, v.total)
        array = np.arange(len(indices), dtype=np.int64) * indices.step + indices.start
    else:
        array = np.asarray(indices)
        if array.ndim == 1 and (array.dtype.kind == "O" or array.dtype.kind == "f" and
                                not isinstance(indices, np.ndarray)):
            # NumPy has no integer that holds them all, or they are no integers.
            array = np.array([row_number(i, "index", v, v.total) for i in indices],
                             dtype=np.int64)
    if array.ndim != 1:
        raise ValueError(f"indices need one dimension, not {array.ndim}")
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"indices need an integer dtype, not {array.dtype}")
    if array.dtype.kind == "u" and array.dtype.itemsize == 8 and array.max() > 2**63 - 1:
        raise out_of_range(array.max(), "index", v, v.total)
    return np.ascontiguousarray(array, dtype=np.int64)


cdef object checked_rows(indices, size_t n, _Variable v):
    """As index_array(), of n indices."""
    if isinstance(indices, range) and <size_t>len(indices[:n + 1]) != n:
        raise ValueError(f"the destination has {n} rows for the indices {indices}")
    if not (cnp.PyArray_CheckExact(indices) and
            cnp.PyArray_TYPE(<cnp.ndarray>indices) == cnp.NPY_INT64 and
            cnp.PyArray_NDIM(<cnp.ndarray>indices) == 1 and
            cnp.PyArray_ISCARRAY_RO(<cnp.ndarray>indices)):
        indices = index_array(indices, v)
    if <size_t>cnp.PyArray_DIM(<cnp.ndarray>indices, 0) != n:
        raise ValueError(f"the destination has {n} rows for {len(indices)} indices")
    return indices


cdef object checked_runs(runs, size_t n):
    """Runs, which are of n rows together."""
    cdef const int64_t[:, ::1] run = runs
    cdef Py_ssize_t i
    cdef uint64_t rows = 0
    if run.shape[1] != 2:
        raise ValueError("a run is a row and a number of rows")
    for i in range(run.shape[0]):
        rows += <uint64_t>run[i, 1]
    if rows != n:
        raise ValueError(f"the destination has {n} rows for {rows}")
    return runs


cdef str checked_name(name):
    if not isinstance(name, str):
        raise TypeError(f"a variable's name is text, not {type(name).__name__}")
    if "\0" in name:
        raise ValueError("a variable's name must not hold NUL")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError("the variable's name can't be written as UTF-8") from None
    return str.__str__(name)


cdef checked_count(value, str what, low, high):
    value = operator.index(value)
    if not low <= value <= high:
        raise ValueError(f"{what} is {value}: give {low} to {high}")
    return value


cdef uint64_t row_elements(shape):
    cdef uint64_t n = 1
    for extent in shape[1:]:
        n *= <uint64_t>extent
    return n


cdef inline bint row_fits(_Variable v, cnp.ndarray a) noexcept:
    cdef uint64_t n = 1
    cdef int i, ndim = cnp.PyArray_NDIM(a)
    for i in range(1, ndim):
        n *= <uint64_t>cnp.PyArray_DIM(a, i)
    return ndim > 0 and n == v.disp


cdef int check_row(_Variable v, array) except -1:
    if array.ndim == 0:
        raise ValueError("a row array needs at least one dimension")
    elements = row_elements(array.shape)
    # Where no rank has rows there is nothing to agree on.
    if elements != v.disp and (v.total or array.shape[0]):
        raise ValueError(
            f"variable {v.name!r} has {v.disp} elements a row; an array of shape "
            f"{array.shape} has {elements}")
    return 0


cdef foreign_destination(_Variable v, arr):
    """A tensor or buffer as an array of its memory."""
    if is_tensor(arr):
        array, text = tensor_array(arr, False)
        check_dtype(v, array.dtype, text)
        return array
    if hasattr(type(arr), "__cuda_array_interface__"):
        refuse_device(f"a GPU ({type(arr).__name__})")
    try:
        array = np.asarray(memoryview(arr))
    except (TypeError, ValueError):
        raise TypeError("a destination is an array, a tensor or a writable buffer, not "
                        f"{type(arr).__name__}") from None
    check_dtype(v, array.dtype, None)
    return array


cdef int check_dtype(_Variable v, dtype, text) except -1:
    """text: of the dtype, where it is not the array's own."""
    if v.text == "":
        if dtype.hasobject:
            raise TypeError(f"variable {v.name!r} holds bytes; dtype {dtype} Python objects")
        if dtype.itemsize != v.itemsize:
            raise TypeError(f"variable {v.name!r} has items of {v.itemsize} bytes; dtype "
                            f"{text or dtype} has {dtype.itemsize}")
        return 0
    if text is None:
        if dtype == v.dtype:
            return 0
        text = "object" if dtype.hasobject else dtype_text(dtype)
    if text != v.text:
        raise TypeError(f"variable {v.name!r} has dtype {v.text}; the array has {text}")
    return 0
