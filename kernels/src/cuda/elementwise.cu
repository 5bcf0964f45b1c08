// Elementwise kernels on elements of type DTYPE, one program per type. Scalar parameters have the compute type.

// The launcher appends a line for each function, with an expression in terms of the names of elementwise.cuh.
// Unary functions, with up to two scalar parameters.
#define UNARY(name, expression)                                                                                      \
    UNARY_FUNCTION(name, expression)                                                                                 \
    extern "C" __global__ void NAMED(name, DTYPE)(DTYPE * out, const DTYPE* x, const __grid_constant__ Walk<2> walk, \
                                                  u64 a, u64 b) {                                                    \
        map(out, walk, name##_function<T>{from_bits<T>(a), from_bits<T>(b)}, x);                                     \
    }
// Their gradients, from the saved value and the output gradient g.
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
// Gradients of binary functions, from both inputs and the output gradient g.
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
