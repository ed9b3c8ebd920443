/* Python's view of words.h: alpha_mpi.model._words. Lets go of the interpreter lock while it looks. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "words.h"

/* Below this many bytes the lock is kept: to let go of it and take it again costs more. */
#define BRIEF (64 << 10)

static PyObject *py_first_match(PyObject *module, PyObject *args)
{
    PyObject *buffers, *list, *result = NULL;
    Py_buffer *views = NULL;
    Py_ssize_t count, held = 0, i, total = 0;
    unsigned long long mask, value;
    struct am_pattern pattern;
    size_t word = 0;
    int size;
    (void)module;

    if (!PyArg_ParseTuple(args, "OiKK:first_match", &buffers, &size, &mask, &value))
        return NULL;
    if (size != 1 && size != 2 && size != 4 && size != 8)
        return PyErr_Format(PyExc_ValueError, "no words of %d bytes", size);
    pattern.size = (size_t)size;
    pattern.mask = mask;
    pattern.value = value;
    list = PySequence_Tuple(buffers);
    if (list == NULL)
        return NULL;
    count = PyTuple_GET_SIZE(list);
    views = PyMem_New(Py_buffer, count > 0 ? count : 1);
    if (views == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (; held < count; held++) {
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(list, held), &views[held], PyBUF_SIMPLE) < 0)
            goto done;
        total += views[held].len;
    }
    {
        PyThreadState *state = total < BRIEF ? NULL : PyEval_SaveThread();
        for (i = 0; i < count; i++) {
            word = am_first_match(views[i].buf, (size_t)views[i].len, &pattern);
            if (word < (size_t)views[i].len / pattern.size)
                break;
        }
        if (state != NULL)
            PyEval_RestoreThread(state);
    }
    if (i < count)
        result = Py_BuildValue("nn", i, (Py_ssize_t)word);
    else
        result = Py_NewRef(Py_None);
done:
    while (held > 0)
        PyBuffer_Release(&views[--held]);
    PyMem_Free(views);
    Py_DECREF(list);
    return result;
}

PyDoc_STRVAR(first_match_doc,
             "first_match(buffers, size, mask, value) -> (int, int) or None\n\n"
             "Find the first word of `size` bytes, 1, 2, 4 or 8, in a sequence of contiguous buffers\n"
             "where word & mask == value: which buffer, and which word of it.");

static PyMethodDef methods[] = {
    {"first_match", py_first_match, METH_VARARGS, first_match_doc},
    {NULL, NULL, 0, NULL},
};

/* The module has no state, so it may live in any interpreter, with or without its own lock. */
static PyModuleDef_Slot slots[] = {
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_words",
    .m_doc = "Loops over many arrays in C; see alpha_mpi.model.formats, its only caller.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__words(void)
{
    return PyModuleDef_Init(&definition);
}
