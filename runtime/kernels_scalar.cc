#include "runtime/kernels.h"
