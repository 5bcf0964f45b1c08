// The interface of the library of convolutions: descriptors with attributes, of which operations, graphs of them and plans are
// made. A graph is one convolution, or one and the sum with a bias.
#include "api.hpp"
#include "conv.hpp"

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

enum Status : int {
    SUCCESS = 0,
    NOT_INITIALIZED = 1001,
    BAD_PARAM = 2000,
    MISALIGNED = 2003,
    NOT_FINALIZED = 2004,
    NOT_SUPPORTED = 3000,
    EXECUTION_FAILED = 5000,
};

// As the library numbers them.
enum Kind : int { POINTWISE = 0, CONVOLUTION, ENGINE, ENGINE_CONFIG, HEURISTIC, PLAN, FORWARD = 10, BACKWARD_FILTER, BACKWARD_DATA, OPERATION_POINTWISE, GRAPH = 15, VARIANT_PACK, TENSOR };
enum Type : int { HANDLE = 0, DATA_TYPE, BOOLEAN, INT64, FLOAT, DOUBLE, VOID_PTR, CONVOLUTION_MODE, HEUR_MODE, NUMERICAL_NOTE = 11, POINTWISE_MODE = 14, DESCRIPTOR = 15, BEHAVIOR_NOTE = 19 };
enum DataType : int { DATA_FLOAT = 0, DATA_HALF = 2, DATA_BFLOAT16 = 9 };
enum Name : int {
    POINTWISE_MODE_ = 0, POINTWISE_MATH_PREC = 1,
    CONV_COMP_TYPE = 100, CONV_MODE, CONV_DILATIONS, CONV_STRIDES, CONV_POST_PADDINGS, CONV_PRE_PADDINGS, CONV_SPATIAL_DIMS,
    HEUR_MODE_ = 200, HEUR_GRAPH, HEUR_RESULTS,
    CONFIG_ENGINE = 300,
    PLAN_HANDLE = 400, PLAN_CONFIG, PLAN_WORKSPACE,
    FORWARD_ALPHA = 700, FORWARD_BETA, FORWARD_CONV, FORWARD_W, FORWARD_X, FORWARD_Y,
    DATA_ALPHA = 706, DATA_BETA, DATA_CONV, DATA_W, DATA_DX, DATA_DY,
    FILTER_ALPHA = 712, FILTER_BETA, FILTER_CONV, FILTER_DW, FILTER_X, FILTER_DY,
    SUM_MODE = 750, SUM_X, SUM_B, SUM_Y,
    GRAPH_HANDLE = 800, GRAPH_OPS,
    TENSOR_ALIGNMENT = 900, TENSOR_TYPE, TENSOR_SIZES, TENSOR_STEPS, TENSOR_ID = 906, TENSOR_IS_VIRTUAL,
    PACK_IDS = 1000, PACK_POINTERS, PACK_WORKSPACE = 1003,
    ENGINE_INDEX = 1301, ENGINE_NUMERICAL = 1303, ENGINE_BEHAVIOR = 1305,
};

// What a graph's engines are like. Those that vary, want a compiler or transform make nothing: whoever wants the same bits each
// time, at once, and exact, leaves them.
enum Engine : int { COMPILED, UNORDERED, TENSOR_CORES, TRANSFORMS, PLAIN, ENGINES };

struct Descriptor {
    Kind kind;
    bool complete = false;
    struct Attribute {
        Type type;
        std::vector<unsigned char> bytes;
        std::vector<std::shared_ptr<Descriptor>> parts;
    };
    std::map<int, Attribute> attributes;
    Engine engine = PLAIN; // of a configuration and what is made of it

    bool has(int name, Type type, size_t bytes) const {
        auto found = attributes.find(name);
        return found != attributes.end() && found->second.type == type && found->second.bytes.size() == bytes;
    }
    template <class T> std::vector<T> values(int name) const {
        const std::vector<unsigned char>& bytes = attributes.at(name).bytes;
        std::vector<T> values(bytes.size() / sizeof(T));
        if (!values.empty()) memcpy(values.data(), bytes.data(), bytes.size());
        return values;
    }
    template <class T> T value(int name) const {
        T one;
        memcpy(&one, attributes.at(name).bytes.data(), sizeof one);
        return one;
    }
    // The part of this kind, or none.
    const Descriptor* part(int name, Kind of, size_t at = 0) const {
        auto found = attributes.find(name);
        bool there = found != attributes.end() && at < found->second.parts.size() && found->second.parts[at]->kind == of;
        return there ? found->second.parts[at].get() : nullptr;
    }
};

struct Handle {
    CUstream stream = nullptr;
};

static std::mutex lock;
static std::unordered_set<Handle*> handles;
static std::unordered_map<Descriptor*, std::shared_ptr<Descriptor>> descriptors;

static std::shared_ptr<Descriptor> find(Descriptor* one) {
    std::lock_guard<std::mutex> held(lock);
    auto found = descriptors.find(one);
    return found == descriptors.end() ? nullptr : found->second;
}
static bool is_handle(Handle* handle) {
    std::lock_guard<std::mutex> held(lock);
    return handles.count(handle) != 0;
}

template <class Body> static int call(const char* name, Body body) {
    std::string details;
    int failure = cuEmulatorEnter(name);
    int result = failure ? failure : body(details);
    cuEmulatorLog(name, details.c_str(), result);
    return result;
}

EXPORT size_t cudnnGetVersion() { return 91000; }

EXPORT const char* cudnnGetErrorString(int status) {
    switch (status) {
    case SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
    case BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case MISALIGNED: return "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER";
    case NOT_FINALIZED: return "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED";
    case NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    default: return "CUDNN_STATUS_INTERNAL_ERROR";
    }
}

EXPORT int cudnnCreate(Handle** out) {
    return call("cudnnCreate", [&](std::string&) -> int {
        if (!out) return BAD_PARAM;
        if (cuEmulatorCheckStream(nullptr) != CUDA_SUCCESS || cuEmulatorAwaitHost("cudnnCreate") != CUDA_SUCCESS) return NOT_INITIALIZED;
        std::lock_guard<std::mutex> held(lock);
        *out = *handles.insert(new Handle).first;
        return SUCCESS;
    });
}

EXPORT int cudnnDestroy(Handle* handle) {
    return call("cudnnDestroy", [&](std::string&) -> int {
        std::lock_guard<std::mutex> held(lock);
        if (handles.erase(handle) == 0) return BAD_PARAM;
        delete handle;
        return SUCCESS;
    });
}

EXPORT int cudnnSetStream(Handle* handle, CUstream stream) {
    return call("cudnnSetStream", [&](std::string&) -> int {
        if (!is_handle(handle) || cuEmulatorCheckStream(stream) != CUDA_SUCCESS) return BAD_PARAM;
        handle->stream = stream;
        return SUCCESS;
    });
}

EXPORT int cudnnBackendCreateDescriptor(int kind, Descriptor** out) {
    return call("cudnnBackendCreateDescriptor", [&](std::string&) -> int {
        if (!out) return BAD_PARAM;
        auto made = std::make_shared<Descriptor>();
        made->kind = Kind(kind);
        std::lock_guard<std::mutex> held(lock);
        descriptors[*out = made.get()] = made;
        return SUCCESS;
    });
}

EXPORT int cudnnBackendDestroyDescriptor(Descriptor* one) {
    return call("cudnnBackendDestroyDescriptor", [&](std::string&) -> int {
        std::lock_guard<std::mutex> held(lock);
        return descriptors.erase(one) ? SUCCESS : BAD_PARAM;
    });
}

static size_t bytes_of(Type type) {
    switch (type) {
    case BOOLEAN: return 1;
    case INT64: case DOUBLE: case HANDLE: case VOID_PTR: case DESCRIPTOR: return 8;
    default: return 4;
    }
}

EXPORT int cudnnBackendSetAttribute(Descriptor* raw, int name, int type, int64_t count, const void* values) {
    return call("cudnnBackendSetAttribute", [&](std::string&) -> int {
        std::shared_ptr<Descriptor> one = find(raw);
        if (!one || one->complete || count < 1 || !values) return BAD_PARAM;
        Descriptor::Attribute attribute{Type(type), {}, {}};
        auto* from = static_cast<const unsigned char*>(values);
        attribute.bytes.assign(from, from + size_t(count) * bytes_of(Type(type)));
        if (type == DESCRIPTOR)
            for (int64_t i = 0; i < count; i++) {
                std::shared_ptr<Descriptor> part = find(static_cast<Descriptor* const*>(values)[i]);
                if (!part) return BAD_PARAM;
                if (!part->complete) return NOT_FINALIZED;
                attribute.parts.push_back(part);
            }
        if (type == HANDLE && !is_handle(*static_cast<Handle* const*>(values))) return BAD_PARAM;
        one->attributes[name] = attribute;
        return SUCCESS;
    });
}

static GemmType gemm_type(int type) { return type == DATA_HALF ? GEMM_F16 : type == DATA_BFLOAT16 ? GEMM_BF16 : GEMM_F32; }

// Which of the three operations, and what it calls its parts.
struct Names {
    Pass pass;
    int alpha, beta, conv, images, filters, results;
};
static bool names_of(Kind kind, Names& names) {
    switch (kind) {
    case FORWARD: names = {Pass::Forward, FORWARD_ALPHA, FORWARD_BETA, FORWARD_CONV, FORWARD_X, FORWARD_W, FORWARD_Y}; return true;
    case BACKWARD_DATA: names = {Pass::InputGrad, DATA_ALPHA, DATA_BETA, DATA_CONV, DATA_DX, DATA_W, DATA_DY}; return true;
    case BACKWARD_FILTER: names = {Pass::WeightGrad, FILTER_ALPHA, FILTER_BETA, FILTER_CONV, FILTER_X, FILTER_DW, FILTER_DY}; return true;
    default: return false;
    }
}

// What a graph computes, without addresses, and whose they are: images, filters, results, and the bias.
struct Computation {
    ConvJob job{};
    int64_t ids[4] = {};
    int64_t alignment[4] = {1, 1, 1, 1};
    bool has_bias = false;
};

static ConvTensor tensor_of(const Descriptor& tensor) {
    ConvTensor of{};
    for (int i = 0; i < 4; i++) {
        of.sizes[i] = tensor.values<int64_t>(TENSOR_SIZES)[size_t(i)];
        of.steps[i] = tensor.values<int64_t>(TENSOR_STEPS)[size_t(i)];
    }
    return of;
}

static bool same(const ConvTensor& a, const ConvTensor& b) { return memcmp(&a, &b, sizeof a) == 0; }
static bool is_virtual(const Descriptor& tensor) { return tensor.has(TENSOR_IS_VIRTUAL, BOOLEAN, 1) && tensor.value<bool>(TENSOR_IS_VIRTUAL); }

static int compute(const Descriptor& graph, Computation& of) {
    const Descriptor* op = nullptr;
    Names names{};
    for (Kind kind : {FORWARD, BACKWARD_DATA, BACKWARD_FILTER})
        if (const Descriptor* found = graph.part(GRAPH_OPS, kind)) op = found, names_of(kind, names);
    if (!op) return NOT_SUPPORTED;
    const Descriptor &conv = *op->part(names.conv, CONVOLUTION), *tensors[3] = {op->part(names.images, TENSOR), op->part(names.filters, TENSOR), op->part(names.results, TENSOR)};
    ConvJob& job = of.job;
    job.pass = names.pass;
    ConvTensor* to[3] = {&job.images, &job.filters, &job.results};
    int made = job.pass == Pass::InputGrad ? 0 : job.pass == Pass::WeightGrad ? 1 : 2;
    int read = made == 0 ? 1 : 0; // an operand that is read
    for (int i = 0; i < 3; i++) *to[i] = tensor_of(*tensors[i]);
    const Descriptor* sum = graph.part(GRAPH_OPS, OPERATION_POINTWISE, 1);
    if (sum) {
        const Descriptor &from = *sum->part(SUM_X, TENSOR), &bias = *sum->part(SUM_B, TENSOR), &out = *sum->part(SUM_Y, TENSOR);
        ConvTensor row = tensor_of(bias), whole = tensor_of(out);
        bool linked = is_virtual(*tensors[made]) && from.value<int64_t>(TENSOR_ID) == tensors[made]->value<int64_t>(TENSOR_ID);
        if (!linked || made == 1 || !same(whole, *to[made])) return NOT_SUPPORTED;
        if (row.count() != row.sizes[1] || row.sizes[1] != whole.sizes[1] || row.steps[1] != 1) return NOT_SUPPORTED;
        // The sums are kept as what they are computed in.
        if (from.value<int>(TENSOR_TYPE) != DATA_FLOAT || sum->part(SUM_MODE, POINTWISE)->value<int>(POINTWISE_MODE_) != 0) return NOT_SUPPORTED;
        if (bias.value<int>(TENSOR_TYPE) != out.value<int>(TENSOR_TYPE)) return NOT_SUPPORTED;
        tensors[made] = &out;
        of.has_bias = true;
        of.ids[3] = bias.value<int64_t>(TENSOR_ID);
        of.alignment[3] = bias.value<int64_t>(TENSOR_ALIGNMENT);
    }
    int type = tensors[read]->value<int>(TENSOR_TYPE);
    job.type = gemm_type(type);
    for (int i = 0; i < 3; i++) {
        if (tensors[i]->value<int>(TENSOR_TYPE) != type || is_virtual(*tensors[i])) return NOT_SUPPORTED;
        of.ids[i] = tensors[i]->value<int64_t>(TENSOR_ID);
        of.alignment[i] = tensors[i]->value<int64_t>(TENSOR_ALIGNMENT);
    }
    if (type != DATA_FLOAT && type != DATA_HALF && type != DATA_BFLOAT16) return NOT_SUPPORTED;
    const ConvTensor &x = job.images, &w = job.filters, &y = job.results;
    if (x.sizes[1] % w.sizes[1] != 0 || y.sizes[1] != w.sizes[0] || x.sizes[0] != y.sizes[0]) return BAD_PARAM;
    if (y.sizes[1] % (x.sizes[1] / w.sizes[1]) != 0) return BAD_PARAM;
    for (size_t i = 0; i < 2; i++) {
        job.padding[i] = conv.values<int64_t>(CONV_PRE_PADDINGS)[i];
        job.stride[i] = conv.values<int64_t>(CONV_STRIDES)[i];
        job.dilation[i] = conv.values<int64_t>(CONV_DILATIONS)[i];
        long long after = conv.values<int64_t>(CONV_POST_PADDINGS)[i], room = x.sizes[2 + i] + job.padding[i] + after - job.dilation[i] * (w.sizes[2 + i] - 1) - 1;
        if (job.stride[i] < 1 || job.dilation[i] < 1 || job.padding[i] < 0 || room < 0) return BAD_PARAM;
        if (y.sizes[2 + i] != room / job.stride[i] + 1) return BAD_PARAM;
        // So that there is something which this library has not.
        if (job.dilation[i] > 1) return NOT_SUPPORTED;
    }
    return SUCCESS;
}

static int check(const Descriptor& one) {
    switch (one.kind) {
    case TENSOR: {
        bool known = one.has(TENSOR_TYPE, DATA_TYPE, 4) && one.has(TENSOR_SIZES, INT64, 32) && one.has(TENSOR_STEPS, INT64, 32) && one.has(TENSOR_ID, INT64, 8) && one.has(TENSOR_ALIGNMENT, INT64, 8);
        if (!known) return BAD_PARAM;
        for (int64_t size : one.values<int64_t>(TENSOR_SIZES))
            if (size < 1) return BAD_PARAM;
        for (int64_t step : one.values<int64_t>(TENSOR_STEPS))
            if (step < 1) return BAD_PARAM;
        return SUCCESS;
    }
    case CONVOLUTION: {
        bool known = one.has(CONV_COMP_TYPE, DATA_TYPE, 4) && one.has(CONV_MODE, CONVOLUTION_MODE, 4) && one.has(CONV_SPATIAL_DIMS, INT64, 8);
        for (int name : {CONV_DILATIONS, CONV_STRIDES, CONV_POST_PADDINGS, CONV_PRE_PADDINGS}) known = known && one.has(name, INT64, 16);
        if (!known || one.value<int64_t>(CONV_SPATIAL_DIMS) != 2) return BAD_PARAM;
        return one.value<int>(CONV_MODE) == 1 && one.value<int>(CONV_COMP_TYPE) == DATA_FLOAT ? SUCCESS : NOT_SUPPORTED;
    }
    case POINTWISE: return one.has(POINTWISE_MODE_, POINTWISE_MODE, 4) && one.has(POINTWISE_MATH_PREC, DATA_TYPE, 4) ? SUCCESS : BAD_PARAM;
    case OPERATION_POINTWISE: return one.part(SUM_MODE, POINTWISE) && one.part(SUM_X, TENSOR) && one.part(SUM_B, TENSOR) && one.part(SUM_Y, TENSOR) ? SUCCESS : BAD_PARAM;
    case FORWARD: case BACKWARD_FILTER: case BACKWARD_DATA: {
        Names names{};
        names_of(one.kind, names);
        bool known = one.part(names.conv, CONVOLUTION) && one.part(names.images, TENSOR) && one.part(names.filters, TENSOR) && one.part(names.results, TENSOR);
        known = known && one.has(names.alpha, FLOAT, 4) && one.has(names.beta, FLOAT, 4);
        if (!known) return BAD_PARAM;
        return one.value<float>(names.alpha) == 1 && one.value<float>(names.beta) == 0 ? SUCCESS : NOT_SUPPORTED;
    }
    case GRAPH: {
        Computation of;
        auto ops = one.attributes.find(GRAPH_OPS);
        if (ops == one.attributes.end() || ops->second.parts.empty() || !one.has(GRAPH_HANDLE, HANDLE, 8)) return BAD_PARAM;
        return ops->second.parts.size() <= 2 ? compute(one, of) : NOT_SUPPORTED;
    }
    case HEURISTIC: return one.part(HEUR_GRAPH, GRAPH) && one.has(HEUR_MODE_, HEUR_MODE, 4) ? SUCCESS : BAD_PARAM;
    case PLAN: return one.part(PLAN_CONFIG, ENGINE_CONFIG) && one.has(PLAN_HANDLE, HANDLE, 8) ? SUCCESS : BAD_PARAM;
    case VARIANT_PACK: {
        auto ids = one.attributes.find(PACK_IDS), pointers = one.attributes.find(PACK_POINTERS);
        bool known = ids != one.attributes.end() && pointers != one.attributes.end() && ids->second.type == INT64 && pointers->second.type == VOID_PTR;
        return known && ids->second.bytes.size() == pointers->second.bytes.size() && one.has(PACK_WORKSPACE, VOID_PTR, 8) ? SUCCESS : BAD_PARAM;
    }
    default: return NOT_SUPPORTED;
    }
}

EXPORT int cudnnBackendFinalize(Descriptor* raw) {
    return call("cudnnBackendFinalize", [&](std::string& details) -> int {
        std::shared_ptr<Descriptor> one = find(raw);
        if (!one || one->complete) return BAD_PARAM;
        details = "kind=" + std::to_string(one->kind);
        int status = check(*one);
        one->complete = status == SUCCESS;
        if (one->kind == PLAN && one->complete) one->engine = one->part(PLAN_CONFIG, ENGINE_CONFIG)->engine;
        return status;
    });
}

static const Descriptor& graph_of(const Descriptor& plan) { return *plan.part(PLAN_CONFIG, ENGINE_CONFIG)->part(HEUR_GRAPH, GRAPH); }

// Sums are made there.
static size_t workspace_of(const Computation& of) { return size_t(of.job.made().count()) * 4; }

// Writes as many of the values as there is room for.
template <class T> static int give(const std::vector<T>& values, int64_t room, int64_t* count, void* to) {
    if (count) *count = int64_t(values.size());
    for (size_t i = 0; i < values.size() && int64_t(i) < room; i++) memcpy(static_cast<T*>(to) + i, &values[i], sizeof(T));
    return SUCCESS;
}

EXPORT int cudnnBackendGetAttribute(Descriptor* raw, int name, int type, int64_t room, int64_t* count, void* to) {
    return call("cudnnBackendGetAttribute", [&](std::string&) -> int {
        std::shared_ptr<Descriptor> one = find(raw);
        if (!one || room < 0 || (room > 0 && !to)) return BAD_PARAM;
        if (!one->complete) return NOT_FINALIZED;
        if (one->kind == HEURISTIC && name == HEUR_RESULTS && type == DESCRIPTOR) {
            if (count) *count = ENGINES;
            for (int64_t i = 0; i < room && i < ENGINES; i++) {
                std::shared_ptr<Descriptor> config = find(static_cast<Descriptor**>(to)[i]);
                if (!config || config->kind != ENGINE_CONFIG || config->complete) return BAD_PARAM;
                config->engine = Engine(i);
                config->attributes[HEUR_GRAPH] = one->attributes[HEUR_GRAPH];
                config->complete = true;
            }
            return SUCCESS;
        }
        if (one->kind == ENGINE_CONFIG && name == CONFIG_ENGINE && type == DESCRIPTOR && room == 1) {
            std::shared_ptr<Descriptor> engine = find(*static_cast<Descriptor**>(to));
            if (!engine || engine->kind != ENGINE) return BAD_PARAM;
            engine->engine = one->engine;
            engine->complete = true;
            if (count) *count = 1;
            return SUCCESS;
        }
        if (one->kind == ENGINE && name == ENGINE_INDEX && type == INT64) return give(std::vector<int64_t>{one->engine}, room, count, to);
        if (one->kind == ENGINE && name == ENGINE_NUMERICAL && type == NUMERICAL_NOTE) {
            const std::vector<int> notes[ENGINES] = {{}, {4}, {0}, {3}, {}};
            return give(notes[one->engine], room, count, to);
        }
        if (one->kind == ENGINE && name == ENGINE_BEHAVIOR && type == BEHAVIOR_NOTE) return give(one->engine == COMPILED ? std::vector<int>{0} : std::vector<int>{}, room, count, to);
        if (one->kind == PLAN && name == PLAN_WORKSPACE && type == INT64) {
            Computation of;
            compute(graph_of(*one), of);
            return give(std::vector<int64_t>{int64_t(workspace_of(of))}, room, count, to);
        }
        return NOT_SUPPORTED;
    });
}

static CUresult enqueue(CUstream stream, void (*run)(void*), const ConvJob& job) {
    auto blocks = unsigned((job.made().count() + 4095) / 4096);
    return cuEmulatorLaunch(stream, "cudnnBackendExecute", blocks, false, run, &job, sizeof job);
}

EXPORT int cudnnBackendExecute(Handle* handle, Descriptor* raw_plan, Descriptor* raw_pack) {
    return call("cudnnBackendExecute", [&](std::string& details) -> int {
        std::shared_ptr<Descriptor> plan = find(raw_plan), pack = find(raw_pack);
        if (!is_handle(handle) || !plan || !pack || plan->kind != PLAN || pack->kind != VARIANT_PACK) return BAD_PARAM;
        if (!plan->complete || !pack->complete) return NOT_FINALIZED;
        Computation of;
        int known = compute(graph_of(*plan), of);
        if (known != SUCCESS) return known;
        if (plan->engine != TENSOR_CORES && plan->engine != PLAIN) return EXECUTION_FAILED;
        details = "pass=" + std::to_string(int(of.job.pass)) + " type=" + std::to_string(of.job.type) + " engine=" + std::to_string(plan->engine) + " bias=" + std::to_string(of.has_bias);
        std::vector<int64_t> ids = pack->values<int64_t>(PACK_IDS);
        std::vector<void*> pointers = pack->values<void*>(PACK_POINTERS);
        void* found[4] = {};
        for (int i = 0; i < (of.has_bias ? 4 : 3); i++) {
            for (size_t k = 0; k < ids.size(); k++)
                if (ids[k] == of.ids[i]) found[i] = pointers[k];
            if (!found[i]) return BAD_PARAM;
            if (uintptr_t(found[i]) % uintptr_t(of.alignment[i]) != 0) return MISALIGNED;
        }
        void* workspace = pack->value<void*>(PACK_WORKSPACE);
        if (!workspace) return BAD_PARAM;
        ConvJob job = of.job;
        // What a tensor core multiplies of F32 is TF32.
        if (job.type == GEMM_F32 && plan->engine == TENSOR_CORES) job.type = GEMM_TF32;
        job.x = found[0];
        job.w = found[1];
        job.y = found[2];
        job.bias = found[3];
        job.out = job.pass == Pass::InputGrad ? found[0] : job.pass == Pass::WeightGrad ? found[1] : found[2];
        job.sums = static_cast<float*>(workspace);
        // Two commands, between which others may run: a workspace that is another one's, too, shows.
        CUresult made = enqueue(handle->stream, [](void* data) { run_conv(*static_cast<ConvJob*>(data)); }, job);
        if (made == CUDA_SUCCESS) made = enqueue(handle->stream, [](void* data) { finish_conv(*static_cast<ConvJob*>(data)); }, job);
        return made == CUDA_SUCCESS ? SUCCESS : EXECUTION_FAILED;
    });
}
