// Elementwise kernels on elements of the type DTYPE, one program a type: a program that computes in F32 compiles no other.
// Numbers that a function holds are of the type that it computes in.

// The kernels: the program goes on with a line for each function, whose expression is of the names of elementwise.cuh.
// Functions of one element x; some hold one or two numbers.
#define UNARY(name, expression)                                                                                      \
    UNARY_FUNCTION(name, expression)                                                                                 \
    extern "C" __global__ void NAMED(name, DTYPE)(DTYPE * out, const DTYPE* x, const __grid_constant__ Walk<2> walk, \
                                                  u64 a, u64 b) {                                                    \
        map(out, walk, name##_function<T>{from_bits<T>(a), from_bits<T>(b)}, x);                                     \
    }
// Their gradients, of what they saved and of the result's gradient g.
#define UNARY_GRAD(name, saved, expression)                                                                    \
    UNARY_GRADIENT(name, saved, expression)                                                                    \
    extern "C" __global__ void NAMED(name##_grad, DTYPE)(DTYPE * out, const DTYPE* x, const DTYPE* y,          \
                                                         const __grid_constant__ Walk<3> walk, u64 a, u64 b) { \
        map(out, walk, name##_gradient<T>{from_bits<T>(a), from_bits<T>(b)}, x, y);                            \
    }
#define BINARY(name, expression)                                                               \
    BINARY_FUNCTION(name, expression)                                                          \
    extern "C" __global__ void NAMED(name, DTYPE)(DTYPE * out, const DTYPE* x, const DTYPE* y, \
                                                  const __grid_constant__ Walk<3> walk) {      \
        map(out, walk, name##_function<T>(), x, y);                                            \
    }
// Gradients of functions of two elements, of both and of the result's gradient g.
#define BINARY_GRAD(name, expression)                                                                          \
    BINARY_GRADIENT(name, expression)                                                                          \
    extern "C" __global__ void NAMED(name, DTYPE)(DTYPE * out, const DTYPE* x, const DTYPE* y, const DTYPE* g, \
                                                  const __grid_constant__ Walk<4> walk) {                      \
        map(out, walk, name##_gradient<T>(), x, y, g);                                                         \
    }
#define COMPARE(name, comparison)                                                           \
    COMPARISON(name, comparison)                                                            \
    extern "C" __global__ void NAMED(name, DTYPE)(u8 * out, const DTYPE* x, const DTYPE* y, \
                                                  const __grid_constant__ Walk<3> walk) {   \
        map(out, walk, name##_function<T>(), x, y);                                         \
    }
