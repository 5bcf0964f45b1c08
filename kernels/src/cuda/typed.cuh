// What the programs for one type of elements share, in which that type is DTYPE.

// How elements are stored, and what they are computed in.
using S = DTYPE;
using T = Opmath<DTYPE>;

// The name of a kernel for a type.
#define JOINED(name, dtype) name##_##dtype
#define NAMED(name, dtype) JOINED(name, dtype)
