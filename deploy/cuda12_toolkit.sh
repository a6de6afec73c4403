#!/usr/bin/env bash
# Makes a CUDA 12 toolkit of NVIDIA's pip wheels in the folder DIR, for GPUs that CUDA 13 has left behind (compute capability 7.0, V100):
#
#   deploy/cuda12_toolkit.sh DIR
#   cmake --preset cuda -DCMAKE_CUDA_COMPILER=clang++-19 -DCUDAToolkit_ROOT=DIR -DAMPD_CUDNN=DIR/cudnn -DAMPD_NCCL=DIR/nccl \
#     -DCMAKE_CUDA_RUNTIME_LIBRARY=Shared -DCMAKE_CUDA_ARCHITECTURES=70
#
# The wheels of CUDA 12 have an assembler and headers but no nvcc, so clang 19 compiles (apt: clang-19). It packs kernels by
# `fatbinary`, which only the wheel of CUDA 13 has; a script there says to it what clang 19 says to CUDA 12's.
# Needs python3 with pip, and 5 GB, of which 2 stay.
set -euo pipefail
here=$(mkdir -p "${1:?the folder to make}" && cd "$1" && pwd)
wheels=$here/wheels/nvidia

export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore  # it installs into a folder of its own
python3 -m pip install --quiet --no-cache-dir --no-deps --target "$here/wheels" \
  'nvidia-cuda-nvcc-cu12==12.6.*' 'nvidia-cuda-runtime-cu12==12.6.*' 'nvidia-cuda-nvrtc-cu12==12.6.*' 'nvidia-cuda-cccl-cu12==12.6.*' \
  'nvidia-cublas-cu12==12.6.*' 'nvidia-cudnn-cu12>=9.8,<9.11' 'nvidia-nccl-cu12>=2.27,<3' 'nvidia-cuda-nvcc==13.0.*'

mkdir -p "$here"/{bin,include,lib64,nvvm,cudnn,nccl}
for part in cuda_nvcc cuda_runtime cuda_nvrtc cuda_cccl cublas; do
  [[ ! -d $wheels/$part/include ]] || cp -r "$wheels/$part/include/." "$here/include/"
  [[ ! -d $wheels/$part/lib ]] || cp -r "$wheels/$part/lib/." "$here/lib64/"
done
cp -r "$wheels/cuda_nvcc/nvvm/." "$here/nvvm/"
cp "$wheels/cuda_nvcc/bin/ptxas" "$here/bin/"
for part in cudnn nccl; do cp -r "$wheels/$part/." "$here/$part/"; done
for library in "$here"/lib64/*.so.* "$here/cudnn/lib/libcudnn.so.9" "$here/nccl/lib/libnccl.so.2"; do
  ln -sf "$(basename "$library")" "${library%%.so.*}.so"
done

# CMake's checks link to these what clang compiles of CUDA. There is a shared runtime alone, and nothing needs the device's.
echo 'INPUT(-lcudart)' >"$here/lib64/libcudart_static.a"
ar rcs "$here/lib64/libcudadevrt.a"
# By this CMake finds where the toolkit is; nothing is compiled with it.
cp "$wheels"/cu13/bin/nvcc "$wheels"/cu13/bin/nvcc.profile "$here/bin/"
cp "$wheels/cu13/bin/fatbinary" "$here/bin/fatbinary-13"
cat >"$here/bin/fatbinary" <<'END'
#!/usr/bin/env bash
# Not compressed: what CUDA 13 compresses with, older drivers cannot read.
arguments=(--compress=false)
for argument; do
  if [[ $argument =~ ^--?image=profile=(sm|compute)_([0-9]+a?),file=(.*)$ ]]; then
    kind=elf
    [[ ${BASH_REMATCH[1]} == sm ]] || kind=ptx
    argument="--image3=kind=$kind,sm=${BASH_REMATCH[2]},file=${BASH_REMATCH[3]}"
  fi
  arguments+=("$argument")
done
exec "$(dirname "$0")/fatbinary-13" "${arguments[@]}"
END
chmod +x "$here/bin/fatbinary"
# Names, versions and licences stay.
rm -rf "$here/wheels/nvidia"
