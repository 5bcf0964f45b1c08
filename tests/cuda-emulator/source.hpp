// Finds a program's kernels in its preprocessed source, and takes out the words that only CUDA has.
#pragma once

#include <string>
#include <vector>

struct KernelName {
    std::string name;
    std::string max_threads; // an expression: of __launch_bounds__, or 1024
};

struct Prepared {
    std::string text;
    std::vector<KernelName> kernels; // those with C linkage, which a module finds by name
};

Prepared prepare(const std::string& preprocessed);
