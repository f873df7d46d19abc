/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of each step on one planned request, compiled for Python: the class Prepared of bucketpool/pool.py without ctypes, and tensors over the
 * request's memory, through DLPack, whose storages call back at their end.
 *
 * Python's limited API: one binary for all versions from 3.11 on. It is linked to nothing: bind() takes the addresses of the library's functions. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <bucketpool/pool.h>

/* ---- DLPack, as in src/allocators/export.c ------------------------------------------------------------------------------ */

typedef struct dl_managed {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
    void *context;
    void (*deleter)(struct dl_managed *self);
} dl_managed;

/* ---- state --------------------------------------------------------------------------------------------------------------- */

static __typeof__(&bp_pool_try_acquire) pool_try_acquire;
static __typeof__(&bp_pool_use) pool_use;
static __typeof__(&bp_pool_release) pool_release;
static PyTypeObject *pool_handle_type, *stream_handle_type;
static PyObject *refuse; /* raises the exception for an argument that is not a stream */
static PyObject *handle_name;
static int exiting; /* Python must not be called any more */

typedef struct prepared {
    PyObject_HEAD PyObject *pool;
    uint32_t id;
    uint64_t bytes;
    PyObject *make, *at_end; /* of serve_with() */
    PyObject *pool_handle;   /* while a tensor uses the memory: keeps it mapped */
    int64_t numel;
    dl_managed managed;
} prepared;

/* ---- calls of the library ------------------------------------------------------------------------------------------------ */

/* The pointer of a Pool or Stream, with a reference to its handle, which keeps the object alive. NULL if it is closed. Returns 0 on errors. */
static int pointer_of(PyObject *owner, PyTypeObject *type, PyObject **handle, void **pointer)
{
    Py_buffer view;
    *handle = PyObject_GetAttr(owner, handle_name);
    *pointer = NULL;
    if (*handle == Py_None)
        return 1;
    if (*handle == NULL || !PyType_IsSubtype(Py_TYPE(*handle), type)) {
        PyErr_Clear();
        Py_CLEAR(*handle);
        Py_XDECREF(PyObject_CallFunctionObjArgs(refuse, owner, NULL));
        return 0;
    }
    if (PyObject_GetBuffer(*handle, &view, PyBUF_SIMPLE) != 0) {
        Py_CLEAR(*handle);
        return 0;
    }
    *pointer = *(void **)view.buf;
    PyBuffer_Release(&view);
    return 1;
}

typedef enum { TRY_ACQUIRE, USE, RELEASE } operation;

/* Returns 0 and sets an exception on errors. keep: receives the reference to the pool's handle. */
static int call(prepared *self, operation what, PyObject *stream, void **address, int *acquired, PyObject **keep)
{
    PyObject *pool_handle, *stream_handle, *error;
    void *pool, *native;
    bp_status status;
    if (!pointer_of(self->pool, pool_handle_type, &pool_handle, &pool))
        return 0;
    if (!pointer_of(stream, stream_handle_type, &stream_handle, &native)) {
        Py_DECREF(pool_handle);
        return 0;
    }
    Py_BEGIN_ALLOW_THREADS switch (what)
    {
    case TRY_ACQUIRE: status = pool_try_acquire(pool, &self->id, 1, native, address, acquired); break;
    case USE: status = pool_use(pool, &self->id, 1, native); break;
    default: status = pool_release(pool, &self->id, 1, native); break;
    }
    Py_END_ALLOW_THREADS Py_DECREF(stream_handle);
    if (status != BP_OK) {
        Py_DECREF(pool_handle);
        error = PyObject_CallMethod(self->pool, "_failure", "iO", (int)status, stream);
        if (error != NULL)
            PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_XDECREF(error);
        return 0;
    }
    if (keep != NULL)
        *keep = pool_handle;
    else
        Py_DECREF(pool_handle);
    return 1;
}

static PyObject *prepared_try_acquire(PyObject *object, PyObject *stream)
{
    void *address = NULL;
    int acquired = 0;
    if (!call((prepared *)object, TRY_ACQUIRE, stream, &address, &acquired, NULL))
        return NULL;
    if (!acquired)
        Py_RETURN_NONE;
    return PyLong_FromVoidPtr(address);
}

static PyObject *prepared_use(PyObject *object, PyObject *stream)
{
    if (!call((prepared *)object, USE, stream, NULL, NULL, NULL))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *prepared_release(PyObject *object, PyObject *stream)
{
    if (!call((prepared *)object, RELEASE, stream, NULL, NULL, NULL))
        return NULL;
    Py_RETURN_NONE;
}

/* ---- tensors ------------------------------------------------------------------------------------------------------------- */

/* The end of a storage, on any thread, perhaps while an exception is raised. */
static void ended(dl_managed *managed)
{
    prepared *self = managed->context;
    PyObject *type, *value, *trace, *handle, *result;
    PyGILState_STATE state;
    if (exiting)
        return;
    state = PyGILState_Ensure();
    PyErr_Fetch(&type, &value, &trace);
    handle = self->pool_handle;
    self->pool_handle = NULL; /* first, because after at_end() another thread may ask for the next tensor */
    result = PyObject_CallNoArgs(self->at_end);
    if (result == NULL)
        PyErr_WriteUnraisable(self->at_end);
    Py_XDECREF(result);
    Py_XDECREF(handle);
    Py_DECREF(self);
    PyErr_Restore(type, value, trace);
    PyGILState_Release(state);
}

static PyObject *prepared_serve_with(PyObject *object, PyObject *arguments)
{
    prepared *self = (prepared *)object;
    PyObject *make, *at_end, *former_make = self->make, *former_at_end = self->at_end;
    int type, id, code, bits;
    if (!PyArg_ParseTuple(arguments, "OiiiiO:serve_with", &make, &type, &id, &code, &bits, &at_end))
        return NULL;
    self->managed = (dl_managed){.device_type = type,
                                 .device_id = id,
                                 .ndim = 1,
                                 .code = (uint8_t)code,
                                 .bits = (uint8_t)bits,
                                 .lanes = 1,
                                 .shape = &self->numel,
                                 .context = self,
                                 .deleter = ended};
    Py_INCREF(make);
    Py_INCREF(at_end);
    self->make = make;
    self->at_end = at_end;
    Py_XDECREF(former_make);
    Py_XDECREF(former_at_end);
    Py_RETURN_NONE;
}

static PyObject *prepared_tensor(PyObject *object, PyObject *const *arguments, Py_ssize_t count)
{
    prepared *self = (prepared *)object;
    PyObject *capsule, *tensor = NULL, *handle = NULL;
    int acquired = 0;
    int64_t numel;
    if (count != 2 || self->make == NULL) {
        PyErr_SetString(PyExc_TypeError, "tensor: expected a stream and a number of elements, after serve_with()");
        return NULL;
    }
    numel = PyLong_AsLongLong(arguments[1]);
    if (numel == -1 && PyErr_Occurred())
        return NULL;
    if (numel < 0 || (uint64_t)numel > self->bytes * 8 / self->managed.bits) {
        PyObject *error = PyObject_CallMethod(self->pool, "_oversized", "ILi", self->id, (long long)numel,
                                              (int)self->managed.bits / 8);
        if (error != NULL)
            PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_XDECREF(error);
        return NULL;
    }
    if (self->pool_handle != NULL)
        Py_RETURN_NONE;
    if (!call(self, TRY_ACQUIRE, arguments[0], &self->managed.data, &acquired, &handle))
        return NULL;
    if (!acquired) {
        Py_DECREF(handle);
        Py_RETURN_NONE;
    }
    self->numel = numel;
    self->pool_handle = handle;
    Py_INCREF(object); /* until ended() */
    capsule = PyCapsule_New(&self->managed, "dltensor", NULL);
    if (capsule != NULL)
        tensor = PyObject_CallFunctionObjArgs(self->make, capsule, NULL);
    if (tensor == NULL && (capsule == NULL || PyCapsule_IsValid(capsule, "dltensor"))) { /* nothing will call ended() */
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        if (!call(self, RELEASE, arguments[0], NULL, NULL, NULL))
            PyErr_Clear();
        Py_CLEAR(self->pool_handle);
        Py_DECREF(self);
        PyErr_Restore(type, value, trace);
    }
    Py_XDECREF(capsule);
    return tensor;
}

/* ---- the class and the module -------------------------------------------------------------------------------------------- */

static PyObject *prepared_new(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    PyObject *pool;
    unsigned int id;
    unsigned long long bytes;
    prepared *self;
    if (named != NULL || !PyArg_ParseTuple(arguments, "OIK:Prepared", &pool, &id, &bytes))
        return NULL;
    self = (prepared *)PyType_GenericAlloc(type, 0);
    if (self != NULL) {
        Py_INCREF(pool);
        self->pool = pool;
        self->id = id;
        self->bytes = bytes;
    }
    return (PyObject *)self;
}

static int prepared_traverse(PyObject *object, visitproc visit, void *arg)
{
    prepared *self = (prepared *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->pool);
    Py_VISIT(self->make);
    Py_VISIT(self->at_end);
    return 0;
}

static int prepared_clear(PyObject *object)
{
    prepared *self = (prepared *)object;
    Py_CLEAR(self->pool);
    Py_CLEAR(self->make);
    Py_CLEAR(self->at_end);
    return 0;
}

static void prepared_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    prepared_clear(object);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyObject *prepared_id(PyObject *object, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLong(((prepared *)object)->id);
}

static PyObject *prepared_pool(PyObject *object, void *closure)
{
    PyObject *pool = ((prepared *)object)->pool;
    (void)closure;
    Py_INCREF(pool);
    return pool;
}

static PyMethodDef prepared_methods[] = {
    {"try_acquire", prepared_try_acquire, METH_O, "try_acquire(stream): the address, or None (busy)."},
    {"use", prepared_use, METH_O, "use(stream)"},
    {"release", prepared_release, METH_O, "release(stream)"},
    {"serve_with", prepared_serve_with, METH_VARARGS,
     "serve_with(make, device_type, device_id, dtype_code, dtype_bits, at_end): how tensor() makes tensors from "
     "capsules."},
    {"tensor", (PyCFunction)(void (*)(void))prepared_tensor, METH_FASTCALL,
     "tensor(stream, numel): a tensor over the acquired memory, or None (busy, or a tensor of it exists). at_end() is "
     "called at the end of its "
     "storage, but not when the interpreter exits."},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef prepared_attributes[] = {{"id", prepared_id, NULL, "The id of the request.", NULL},
                                            {"pool", prepared_pool, NULL, "The pool.", NULL},
                                            {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot prepared_slots[] = {{Py_tp_new, prepared_new},
                                       {Py_tp_dealloc, prepared_dealloc},
                                       {Py_tp_traverse, prepared_traverse},
                                       {Py_tp_clear, prepared_clear},
                                       {Py_tp_methods, prepared_methods},
                                       {Py_tp_getset, prepared_attributes},
                                       {0, NULL}};

static PyType_Spec prepared_spec = {"bucketpool._binding.Prepared", sizeof(prepared), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, prepared_slots};

static PyObject *bind(PyObject *module, PyObject *arguments)
{
    unsigned long long acquire, use, release;
    PyObject *pool_type, *stream_type;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "KKKOOO:bind", &acquire, &use, &release, &pool_type, &stream_type, &refuse))
        return NULL;
    Py_INCREF(pool_type);
    Py_INCREF(stream_type);
    Py_INCREF(refuse);
    pool_handle_type = (PyTypeObject *)pool_type;
    stream_handle_type = (PyTypeObject *)stream_type;
    pool_try_acquire = (__typeof__(pool_try_acquire))(uintptr_t)acquire;
    pool_use = (__typeof__(pool_use))(uintptr_t)use;
    pool_release = (__typeof__(pool_release))(uintptr_t)release;
    Py_RETURN_NONE;
}

static PyObject *stop(PyObject *module, PyObject *nothing)
{
    (void)module;
    (void)nothing;
    exiting = 1;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"bind", bind, METH_VARARGS,
     "bind(bp_pool_try_acquire, bp_pool_use, bp_pool_release, PoolHandle, StreamHandle, refuse): addresses of the "
     "library's functions, the types of handles, and a function that raises for an object that is neither."},
    {"stop", stop, METH_NOARGS, "The interpreter exits: ends of storages are no longer reported."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_binding", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__binding(void);
PyMODINIT_FUNC PyInit__binding(void)
{
    PyObject *module, *type;
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) { /* the state above is that of the main one */
        PyErr_SetString(PyExc_ImportError,
                        "bucketpool: subinterpreters are unsupported; import it in the main interpreter");
        return NULL;
    }
    module = PyModule_Create(&definition);
    type = PyType_FromSpec(&prepared_spec);
    handle_name = PyUnicode_InternFromString("_handle");
    if (module == NULL || type == NULL || handle_name == NULL || PyModule_AddObjectRef(module, "Prepared", type) != 0)
        Py_CLEAR(module);
    Py_XDECREF(type);
    return module;
}
