// F32 that is multiplied as TF32. Comes after the shim.
#pragma once

// Rounded when it is read: to nearest, and away from 0 in between.
struct Tf32 {
    unsigned bits;
    operator float() const {
        bool finite = (bits & 0x7F800000) != 0x7F800000;
        return __uint_as_float(finite ? (bits + 0x1000) & ~0x1FFFu : bits);
    }
};
