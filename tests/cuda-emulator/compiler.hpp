// Compiles CUDA C to a shared object, by the system's C++ compiler.
#pragma once

#include <string>
#include <vector>

struct Header {
    std::string name, text;
};

struct Compilation {
    bool compiled = false;
    bool broken = false; // not the program's fault: no compiler, no room
    std::string log;
    std::string object;
};

struct CompileOptions {
    std::vector<std::string> arguments; // -D, -U, -I, -std
    bool contract = true;               // products and sums to fused ones
    unsigned architecture = 0;
};

Compilation compile(const std::string& name, const std::string& source, const std::vector<Header>& headers, const CompileOptions& options);
