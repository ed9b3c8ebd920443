/* Python's view of durable.h: alpha_mpi.store._durable. Converts arguments, lets go of the
 * interpreter lock around every system call, and turns an errno value into an OSError with the
 * path and the stage. Decides nothing. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "durable.h"

#include <errno.h>
#include <string.h>

/* Raise OSError(error, text, path); its attribute `stage` is the stage's name, or absent. */
static PyObject *fail(int error, const char *stage, PyObject *path)
{
    PyObject *exception =
        PyObject_CallFunction(PyExc_OSError, "isO", error, strerror(error), path);
    if (exception == NULL)
        return NULL;
    if (stage != NULL) {
        PyObject *text = PyUnicode_FromString(stage);
        if (text == NULL || PyObject_SetAttrString(exception, "stage", text) < 0) {
            Py_XDECREF(text);
            Py_DECREF(exception);
            return NULL;
        }
        Py_DECREF(text);
    }
    PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    Py_DECREF(exception);
    return NULL;
}

static PyObject *py_create(PyObject *module, PyObject *args)
{
    int directory, fd, error;
    PyObject *name, *path;
    (void)module;

    if (!PyArg_ParseTuple(args, "iO&O:create", &directory, PyUnicode_FSConverter, &name, &path))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    error = am_create(directory, PyBytes_AS_STRING(name), &fd);
    Py_END_ALLOW_THREADS
    Py_DECREF(name);
    return error ? fail(error, am_stage_name(AM_CREATE), path) : PyLong_FromLong(fd);
}

static PyObject *py_preallocate(PyObject *module, PyObject *args)
{
    int fd, error;
    long long size;
    PyObject *path;
    (void)module;

    if (!PyArg_ParseTuple(args, "iLO:preallocate", &fd, &size, &path))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    error = am_preallocate(fd, size);
    Py_END_ALLOW_THREADS
    if (error)
        return fail(error, am_stage_name(AM_PREALLOCATE), path);
    Py_RETURN_NONE;
}

static PyObject *py_write(PyObject *module, PyObject *args)
{
    int fd, error = 0;
    long long offset;
    int64_t written = 0;
    PyObject *buffers, *path, *list, *result = NULL;
    Py_buffer *views = NULL;
    struct iovec *vector = NULL;
    Py_ssize_t count, held = 0;
    (void)module;

    if (!PyArg_ParseTuple(args, "iOLO:write", &fd, &buffers, &offset, &path))
        return NULL;
    list = PySequence_Tuple(buffers);
    if (list == NULL)
        return NULL;
    count = PyTuple_GET_SIZE(list);
    views = PyMem_New(Py_buffer, count > 0 ? count : 1);
    vector = PyMem_New(struct iovec, count > 0 ? count : 1);
    if (views == NULL || vector == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (; held < count; held++) {
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(list, held), &views[held], PyBUF_SIMPLE) < 0)
            goto done;
        vector[held].iov_base = views[held].buf;
        vector[held].iov_len = (size_t)views[held].len;
    }
    Py_BEGIN_ALLOW_THREADS
    error = am_write(fd, vector, (size_t)count, offset, &written);
    Py_END_ALLOW_THREADS
    result = error ? fail(error, am_stage_name(AM_WRITE), path) : PyLong_FromLongLong(written);
done:
    while (held > 0)
        PyBuffer_Release(&views[--held]);
    PyMem_Free(vector);
    PyMem_Free(views);
    Py_DECREF(list);
    return result;
}

static PyObject *py_commit(PyObject *module, PyObject *args)
{
    struct am_target target;
    enum am_stage failed = AM_SYNC_DATA;
    int error, by_link;
    long long size;
    PyObject *temporary, *name, *path;
    (void)module;

    if (!PyArg_ParseTuple(args, "iiO&O&LppO:commit", &target.directory, &target.fd,
                          PyUnicode_FSConverter, &temporary, PyUnicode_FSConverter, &name, &size,
                          &by_link, &target.sync_directory, &path))
        return NULL;
    target.temporary = PyBytes_AS_STRING(temporary);
    target.name = PyBytes_AS_STRING(name);
    target.size = size;
    target.manner = by_link ? AM_BY_LINK : AM_BY_RENAME;
    Py_BEGIN_ALLOW_THREADS
    error = am_commit(&target, &failed);
    Py_END_ALLOW_THREADS
    Py_DECREF(temporary);
    Py_DECREF(name);
    if (error)
        return fail(error, am_stage_name(failed), path);
    return PyBool_FromLong(target.manner == AM_BY_LINK);
}

static PyObject *py_sync_directory(PyObject *module, PyObject *args)
{
    int directory, error;
    PyObject *path;
    (void)module;

    if (!PyArg_ParseTuple(args, "iO:sync_directory", &directory, &path))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    error = am_sync_directory(directory);
    Py_END_ALLOW_THREADS
    if (error)
        return fail(error, am_stage_name(AM_SYNC_DIRECTORY), path);
    Py_RETURN_NONE;
}

static PyObject *py_make_directory(PyObject *module, PyObject *args)
{
    int directory, made, error;
    PyObject *name, *path;
    (void)module;

    if (!PyArg_ParseTuple(args, "iO&O:make_directory", &directory, PyUnicode_FSConverter, &name,
                          &path))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    error = am_make_directory(directory, PyBytes_AS_STRING(name), &made);
    Py_END_ALLOW_THREADS
    Py_DECREF(name);
    return error ? fail(error, am_stage_name(AM_MAKE_DIRECTORY), path) : PyBool_FromLong(made);
}

static PyObject *py_open_directory(PyObject *module, PyObject *args)
{
    int directory, fd, error;
    PyObject *name, *path;
    (void)module;

    if (!PyArg_ParseTuple(args, "iO&O:open_directory", &directory, PyUnicode_FSConverter, &name,
                          &path))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    error = am_open_directory(directory, PyBytes_AS_STRING(name), &fd);
    Py_END_ALLOW_THREADS
    Py_DECREF(name);
    return error ? fail(error, NULL, path) : PyLong_FromLong(fd);
}

static PyObject *py_open_file(PyObject *module, PyObject *args)
{
    int directory, fd, error;
    int64_t size;
    PyObject *name, *path;
    (void)module;

    if (!PyArg_ParseTuple(args, "iO&O:open_file", &directory, PyUnicode_FSConverter, &name, &path))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    error = am_open_file(directory, PyBytes_AS_STRING(name), &fd, &size);
    Py_END_ALLOW_THREADS
    Py_DECREF(name);
    return error ? fail(error, NULL, path) : Py_BuildValue("iL", fd, (long long)size);
}

static PyObject *py_read(PyObject *module, PyObject *args)
{
    int fd, error;
    long long offset;
    size_t got;
    Py_buffer view;
    PyObject *path;
    (void)module;

    if (!PyArg_ParseTuple(args, "iw*LO:read", &fd, &view, &offset, &path))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    error = am_read(fd, view.buf, (size_t)view.len, offset, &got);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return error ? fail(error, NULL, path) : PyLong_FromSize_t(got);
}

PyDoc_STRVAR(create_doc, "create(directory, temporary, path) -> fd\n\n"
                         "Create a file that must not exist; `path` is what an error names.");
PyDoc_STRVAR(preallocate_doc, "preallocate(fd, size, path) -> None\n\n"
                              "Ask for space now; a file system that cannot reserve is no error.");
PyDoc_STRVAR(write_doc, "write(fd, buffers, offset, path) -> int\n\n"
                        "Write contiguous buffers from `offset` on; return the bytes written: all.");
PyDoc_STRVAR(commit_doc,
             "commit(directory, fd, temporary, name, size, by_link, sync_directory, path) -> bool\n\n"
             "Sync data, close, rename with no-replace (or link and unlink), sync directory.\n"
             "The descriptor is closed in any case. True if the name was taken by a link.");
PyDoc_STRVAR(sync_directory_doc, "sync_directory(directory, path) -> None\n\n"
                                 "Make the directory's entries durable.");
PyDoc_STRVAR(make_directory_doc, "make_directory(directory, name, path) -> bool\n\n"
                                 "Make a directory; False if the name existed.");
PyDoc_STRVAR(open_directory_doc, "open_directory(directory, name, path) -> fd\n\n"
                                 "Open a directory; a symbolic link is not followed.");
PyDoc_STRVAR(open_file_doc, "open_file(directory, name, path) -> (fd, size)\n\n"
                            "Open a regular file for reading; (-1, -1) if it is not one.");
PyDoc_STRVAR(read_doc, "read(fd, buffer, offset, path) -> int\n\n"
                       "Fill a writable buffer; return the bytes read, fewer only at the end.");

static PyMethodDef methods[] = {
    {"create", py_create, METH_VARARGS, create_doc},
    {"preallocate", py_preallocate, METH_VARARGS, preallocate_doc},
    {"write", py_write, METH_VARARGS, write_doc},
    {"commit", py_commit, METH_VARARGS, commit_doc},
    {"sync_directory", py_sync_directory, METH_VARARGS, sync_directory_doc},
    {"make_directory", py_make_directory, METH_VARARGS, make_directory_doc},
    {"open_directory", py_open_directory, METH_VARARGS, open_directory_doc},
    {"open_file", py_open_file, METH_VARARGS, open_file_doc},
    {"read", py_read, METH_VARARGS, read_doc},
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
    .m_name = "_durable",
    .m_doc = "Durable files in C; see alpha_mpi.store.durable, its only caller.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__durable(void)
{
    return PyModuleDef_Init(&definition);
}
