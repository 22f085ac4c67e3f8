// Ends the program with the message, which is all that a test needs of an exception.
#pragma once
#include <cstdlib>
#include <iostream>

struct Thrown {
  explicit Thrown(const char* kind) { std::cerr << kind << ": "; }
  [[noreturn]] ~Thrown() {
    std::cerr << std::endl;
    std::exit(3);
  }
};
#define TVM_FFI_THROW(kind) (Thrown(#kind), std::cerr)
