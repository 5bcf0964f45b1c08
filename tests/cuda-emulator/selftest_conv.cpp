// Convolutions of cuDNN's descriptors, against loops.
#include "selftest.hpp"

#include <cstring>

template <class... A> static int cudnn(const char* name, A... arguments) {
    return reinterpret_cast<int (*)(A...)>(symbol("libcudnn.so", name))(arguments...);
}

// As the library numbers them.
enum { HANDLE = 0, DATA_TYPE = 1, INT64 = 3, FLOAT = 4, VOID_PTR = 6, CONVOLUTION_MODE = 7, HEUR_MODE = 8, NUMERICAL_NOTE = 11, DESCRIPTOR = 15 };
enum { CONVOLUTION = 1, ENGINE = 2, ENGINE_CONFIG = 3, HEURISTIC = 4, PLAN = 5, FORWARD = 10, GRAPH = 15, PACK = 16, TENSOR = 17 };

static Ptr describe(int kind) {
    Ptr made = nullptr;
    CHECK_EQUAL(cudnn("cudnnBackendCreateDescriptor", kind, &made), 0);
    return made;
}
template <class T> static int set(Ptr one, int name, int type, std::vector<T> values) {
    return cudnn("cudnnBackendSetAttribute", one, name, type, int64_t(values.size()), static_cast<const void*>(values.data()));
}
static int finalize(Ptr one) { return cudnn("cudnnBackendFinalize", one); }

static Ptr tensor(int64_t id, std::vector<int64_t> sizes) {
    Ptr made = describe(TENSOR);
    set<int>(made, 901, DATA_TYPE, {0});
    set<int64_t>(made, 902, INT64, sizes);
    set<int64_t>(made, 903, INT64, {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1});
    set<int64_t>(made, 906, INT64, {id});
    set<int64_t>(made, 900, INT64, {16});
    CHECK_EQUAL(finalize(made), 0);
    return made;
}

// Images [1, 2, 4, 4], filters [3, 2, 3, 3] of which each has a border of one zero.
struct Forward {
    Ptr handle = nullptr, graph = nullptr;
    int status = 0; // of the graph
    explicit Forward(int64_t dilation) {
        CHECK_EQUAL(cudnn("cudnnCreate", &handle), 0);
        Ptr conv = describe(CONVOLUTION), operation = describe(FORWARD);
        set<int>(conv, 100, DATA_TYPE, {0});
        set<int>(conv, 101, CONVOLUTION_MODE, {1});
        set<int64_t>(conv, 106, INT64, {2});
        for (int name : {104, 105}) set<int64_t>(conv, name, INT64, {dilation, dilation});
        set<int64_t>(conv, 102, INT64, {dilation, dilation});
        set<int64_t>(conv, 103, INT64, {1, 1});
        CHECK_EQUAL(set<Ptr>(operation, 702, DESCRIPTOR, {conv}), 2004); // not complete
        CHECK_EQUAL(finalize(conv), 0);
        CHECK_EQUAL(set<int64_t>(conv, 103, INT64, {1, 1}), 2000); // complete
        set<float>(operation, 700, FLOAT, {1});
        set<float>(operation, 701, FLOAT, {0});
        set<Ptr>(operation, 702, DESCRIPTOR, {conv});
        set<Ptr>(operation, 703, DESCRIPTOR, {tensor(1, {3, 2, 3, 3})});
        set<Ptr>(operation, 704, DESCRIPTOR, {tensor(0, {1, 2, 4, 4})});
        CHECK_EQUAL(finalize(operation), 2000); // no results
        set<Ptr>(operation, 705, DESCRIPTOR, {tensor(2, {1, 3, 4, 4})});
        CHECK_EQUAL(finalize(operation), 0);
        graph = describe(GRAPH);
        set<Ptr>(graph, 800, HANDLE, {handle});
        set<Ptr>(graph, 801, DESCRIPTOR, {operation});
        status = finalize(graph);
    }
    std::vector<Ptr> configurations() const {
        Ptr heuristic = describe(HEURISTIC);
        set<Ptr>(heuristic, 201, DESCRIPTOR, {graph});
        set<int>(heuristic, 200, HEUR_MODE, {3});
        CHECK_EQUAL(finalize(heuristic), 0);
        int64_t count = 0;
        CHECK_EQUAL(cudnn("cudnnBackendGetAttribute", heuristic, 202, int(DESCRIPTOR), int64_t(0), &count, NONE), 0);
        std::vector<Ptr> all;
        for (int64_t i = 0; i < count; i++) all.push_back(describe(ENGINE_CONFIG));
        CHECK_EQUAL(cudnn("cudnnBackendGetAttribute", heuristic, 202, int(DESCRIPTOR), count, &count, static_cast<void*>(all.data())), 0);
        return all;
    }
    Ptr plan(Ptr configuration) const {
        Ptr made = describe(PLAN);
        set<Ptr>(made, 400, HANDLE, {handle});
        set<Ptr>(made, 401, DESCRIPTOR, {configuration});
        CHECK_EQUAL(finalize(made), 0);
        return made;
    }
    int execute(Ptr plan, std::vector<CUdeviceptr> addresses, CUdeviceptr workspace) const {
        Ptr pack = describe(PACK);
        set<int64_t>(pack, 1000, INT64, {0, 1, 2});
        set<CUdeviceptr>(pack, 1001, VOID_PTR, addresses);
        set<CUdeviceptr>(pack, 1003, VOID_PTR, {workspace});
        CHECK_EQUAL(finalize(pack), 0);
        return cudnn("cudnnBackendExecute", handle, plan, pack);
    }
};

static void convolutions() {
    open_device();
    Ptr stream = new_stream();
    Forward forward(1);
    CHECK_EQUAL(forward.status, 0);
    CHECK_EQUAL(cudnn("cudnnSetStream", forward.handle, stream), 0);
    std::vector<Ptr> all = forward.configurations();
    CHECK_EQUAL(all.size(), size_t(5));
    Ptr plain = forward.plan(all[4]);
    int64_t workspace = 0, count = 0;
    CHECK_EQUAL(cudnn("cudnnBackendGetAttribute", plain, 402, int(INT64), int64_t(1), &count, static_cast<void*>(&workspace)), 0);
    CHECK_EQUAL(workspace, int64_t(3 * 4 * 4 * 4));
    std::vector<float> x(32), w(54), expected(48);
    for (size_t i = 0; i < x.size(); i++) x[i] = float(int(i * 7 % 11) - 5);
    for (size_t i = 0; i < w.size(); i++) w[i] = float(int(i * 5 % 7) - 3);
    for (int f = 0; f < 3; f++)
        for (int at = 0; at < 16; at++)
            for (int e = 0; e < 18; e++) {
                int h = at / 4 + e % 9 / 3 - 1, v = at % 4 + e % 3 - 1;
                if (h >= 0 && h < 4 && v >= 0 && v < 4) expected[size_t(f * 16 + at)] += w[size_t(f * 18 + e)] * x[size_t(e / 9 * 16 + h * 4 + v)];
            }
    CUdeviceptr dx = allocate(128), dw = allocate(216), dy = allocate(200), room = allocate(192);
    upload(dx, x, stream);
    upload(dw, w, stream);
    CHECK_EQUAL(forward.execute(plain, {dx, dw, dy}, room), 0);
    CHECK(download<float>(dy, 48, stream) == expected);
    CHECK_EQUAL(forward.execute(plain, {dx, dw, dy + 4}, room), 2003); // misaligned
    CHECK_EQUAL(forward.execute(plain, {dx, dw, dy}, 0), 2000);        // no workspace
    // One that wants a compiler, one whose results vary, and one by transforms.
    for (size_t i : {0, 1, 3}) CHECK_EQUAL(forward.execute(forward.plan(all[i]), {dx, dw, dy}, room), 5000);
    Ptr engine = describe(ENGINE);
    int note = -1;
    CHECK_EQUAL(cudnn("cudnnBackendGetAttribute", all[1], 300, int(DESCRIPTOR), int64_t(1), &count, static_cast<void*>(&engine)), 0);
    CHECK_EQUAL(cudnn("cudnnBackendGetAttribute", engine, 1303, int(NUMERICAL_NOTE), int64_t(1), &count, static_cast<void*>(&note)), 0);
    CHECK_EQUAL(note, 4);
    CHECK_EQUAL(Forward(2).status, 3000);
    CHECK_EQUAL(cudnn("cudnnDestroy", forward.handle), 0);
    CHECK_EQUAL(forward.execute(plain, {dx, dw, dy}, room), 2000);
}

const std::vector<Test> CONV_TESTS = {
    {"convolutions", "", convolutions},
};
