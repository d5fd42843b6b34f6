# The program, with what it needs at run time, on Debian 12:
#   docker build -t outrider .
#   docker run --rm -p 8000:8000 -v /srv/models:/models outrider serve /models/target.gguf --host 0.0.0.0 --api-key-file /models/key
# With the CUDA back-end, for a host with NVIDIA's container toolkit (docker run --gpus all):
#   docker build --build-arg CUDA=13-0 --build-arg CUDA_ARCHITECTURES="90;100" -t outrider:cuda .
FROM debian:12 AS build
# Empty: without CUDA. Else a version of NVIDIA's packages for Debian 12.
ARG CUDA=
ARG CUDA_ARCHITECTURES=90
# For `outrider --version`: --build-arg COMMIT=$(git rev-parse --short=12 HEAD).
ARG COMMIT=
WORKDIR /src
COPY launch/install_packages launch/
RUN launch/install_packages && apt-get install -q -y --no-install-recommends dpkg-dev file \
 && if [ -n "$CUDA" ]; then \
      apt-get install -q -y --no-install-recommends ca-certificates wget \
      && wget -q https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/cuda-keyring_1.1-1_all.deb \
      && dpkg -i cuda-keyring_1.1-1_all.deb && apt-get update -q \
      && apt-get install -q -y --no-install-recommends "cuda-nvcc-$CUDA" "cuda-cudart-dev-$CUDA"; \
    fi
COPY . .
RUN PATH="/usr/local/cuda/bin:$PATH" cmake --preset release -DBUILD_TESTING=OFF \
      -DOUTRIDER_WITH_CUDA="$([ -n "$CUDA" ] && echo ON || echo OFF)" -DOUTRIDER_CUDA_ARCHITECTURES="$CUDA_ARCHITECTURES" \
 && PATH="/usr/local/cuda/bin:$PATH" OUTRIDER_COMMIT="$COMMIT" cmake --build --preset release --target outrider \
 && cd build/release && cpack -G DEB && mv outrider_*.deb /outrider.deb

FROM debian:12-slim
COPY --from=build /outrider.deb /tmp/outrider.deb
# Open MPI's launcher is a recommendation of the package: add openmpi-bin for `mpirun` within the container.
RUN apt-get update -q && apt-get install -q -y --no-install-recommends /tmp/outrider.deb \
 && rm -rf /tmp/outrider.deb /var/lib/apt/lists/* \
 && useradd --system --create-home outrider
USER outrider
# --host 0.0.0.0 and a key are the user's decision: without them the server answers within the container only.
EXPOSE 8000
# SIGTERM drains for --drain-timeout seconds; give `docker stop --time` as many.
STOPSIGNAL SIGTERM
ENTRYPOINT ["outrider"]
CMD ["--help"]
