# The CUDA back-end: compiled where nvcc is found, and never needed. The runtime is linked statically and the
# driver is looked for when the program runs, so the same program starts on machines without either.
option(OUTRIDER_WITH_CUDA "Compile the CUDA back-end where nvcc is found" ON)
set(OUTRIDER_CUDA_ARCHITECTURES "90" CACHE STRING "Compute capabilities to compile for, e.g. 80;90;100")

set(OUTRIDER_HAS_CUDA false)
if(OUTRIDER_WITH_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES ${OUTRIDER_CUDA_ARCHITECTURES})
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(OUTRIDER_HAS_CUDA true)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know it for nvcc 13
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    if(CCACHE_PROGRAM)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
    endif()
  endif()
endif()
message(STATUS "CUDA: ${OUTRIDER_HAS_CUDA} (${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION})")

# Bits are part of the contract: a*b+c is contracted only where the source says fma. Register spills are errors.
# nvcc's front end does not take fmt's consteval checks of format strings.
set(OUTRIDER_CUDA_OPTIONS -fmad=false --expt-relaxed-constexpr -DFMT_CONSTEVAL= -DFMT_USE_CONSTEXPR=1
    "-Xptxas=--warn-on-spills,--warning-as-error"
    "-Xcompiler=-Wall,-Wextra,-ffp-contract=off,-Wno-missing-field-initializers,-Wno-unknown-pragmas")
if(OUTRIDER_SANITIZE)
  string(REPLACE "," "\\," sanitizers "${OUTRIDER_SANITIZE}")
  list(APPEND OUTRIDER_CUDA_OPTIONS "-Xcompiler=-fsanitize=${sanitizers}")
endif()
