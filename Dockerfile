# The daemon, its worker and ampctl on Debian 12. deploy/build_image.sh builds the target cpu and tries it; by hand:
#   docker build --target cpu -t ampd:cpu .
#   docker build --target gpu -t ampd:gpu .          # CUDA 13, compute capability 7.5 and later; runs where there is no GPU too
#   docker build --target gpu --build-arg CUDA=12 -t ampd:gpu-cuda12 .     # compute capability 7.0 (V100) and later, older drivers
#   docker run --stop-timeout 90 -p 127.0.0.1:7070:7070 -p 127.0.0.1:7071:7071 -v ampd-state:/var/lib/ampd -v DIR:/data:ro ampd:cpu
#   docker run --stop-timeout 90 --gpus all ... ampd:gpu
# (docker stop kills after 10 s otherwise, and the daemon drains for up to 60: jobs write their checkpoints then)
# or all of it with Prometheus and Grafana: deploy/compose.yaml.
#
# The default command serves gRPC without TLS and tokens: publish the ports to hosts that you trust only, or see docs/security.md.
ARG BASE=debian:12-slim
ARG AMPD_VERSION=0.1.0

FROM ${BASE} AS source
ENV DEBIAN_FRONTEND=noninteractive
COPY deploy/packages.sh /src/deploy/packages.sh
RUN bash -c '. /src/deploy/packages.sh && ampd_install_packages "${AMPD_BUILD_PACKAGES[@]}" && \
      dpkg-query -W -f "build deb \${Package} \${Version}\n" "${AMPD_BUILD_PACKAGES[@]}" >/built-with' && \
    rm -rf /var/lib/apt/lists/*
COPY . /src
WORKDIR /src

FROM source AS build
ARG REVISION=unknown
RUN cmake --preset release "-DAMPD_REVISION=$REVISION" && \
    cmake --build --preset release --target ampd ampd-worker ampctl && \
    mkdir /out && strip -o /out/ampd build/release/bin/ampd && strip -o /out/ampd-worker build/release/bin/ampd-worker && \
    strip -o /out/ampctl build/release/bin/ampctl

FROM ${BASE} AS runtime
ARG BASE
ARG AMPD_VERSION
LABEL org.opencontainers.image.title="ampd" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${AMPD_VERSION}" \
      org.opencontainers.image.base.name="${BASE}"
# Of the packages what runs: tests/e2e/image_test.py knows that no program is linked to a library left out here.
RUN printf 'path-exclude=%s\n' '/usr/share/doc/*' '/usr/share/man/*' '/usr/share/locale/*' '/usr/share/lintian/*' '*/engines-3/*' \
      '*/libgrpc_unsecure.so*' '*/libgrpc++_unsecure.so*' '*/libgrpcpp_channelz.so*' '*/libgrpc_plugin_support.so*' \
      '*/libgrpc++_alts.so*' '*/libgrpc++_error_details.so*' '*/libprotoc.so*' '*/libonnx.so*' '*/libabsl_flags*' >/etc/dpkg/dpkg.cfg.d/ampd && \
    echo 'path-include=/usr/share/doc/*/copyright' >>/etc/dpkg/dpkg.cfg.d/ampd && \
    apt-get update -qq && \
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
      libgrpc++1.51 libprotobuf32 libabsl20220623 libprometheus-cpp-core1.0 libsqlite3-0 libyaml-cpp0.7 \
      libssl3 zlib1g libjpeg62-turbo libpng16-16 libdnnl2 libgomp1 libonnx1 && \
    apt-get clean && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/lib/dpkg/info/*.symbols && \
    groupadd --gid 7070 ampd && \
    useradd --uid 7070 --gid 7070 --shell /usr/sbin/nologin --home-dir /var/lib/ampd --create-home ampd && \
    mkdir -p /data
COPY client/examples /usr/share/ampd/examples
COPY LICENSE /usr/share/doc/ampd/LICENSE
ENV AMPD_LISTEN=0.0.0.0:7070 \
    AMPD_HTTP=0.0.0.0:7071 \
    AMPD_STATE_DIR=/var/lib/ampd \
    AMPD_DATA_ROOTS=/data
USER ampd
WORKDIR /var/lib/ampd
VOLUME /var/lib/ampd
EXPOSE 7070 7071
STOPSIGNAL SIGTERM
# Over HTTP: it asks for no certificate and no token, whatever the daemon is configured to ask of others. 400: the port speaks TLS, and says so.
HEALTHCHECK --interval=10s --timeout=10s --start-period=10s \
  CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/7071 && printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3 && grep -q '^HTTP/1.. [24]00' <&3"]
ENTRYPOINT ["ampd"]
CMD ["--insecure"]

# What is in the image, and what it was built with.
FROM runtime AS sbom
USER root
COPY deploy/sbom.sh /sbom.sh
COPY --from=build /built-with /built-with
COPY --from=build /out /out
ARG AMPD_VERSION
RUN /sbom.sh ampd-cpu "$AMPD_VERSION" /out /built-with >/sbom.spdx.json

FROM runtime AS cpu
LABEL org.opencontainers.image.description="Trains neural networks in mixed precision; CPU build"
COPY --from=build /out /usr/local/bin/
COPY --from=sbom /sbom.spdx.json /usr/share/ampd/
ARG REVISION=unknown
LABEL org.opencontainers.image.revision="${REVISION}"

# NVIDIA's pip wheels hold the toolkit and the libraries. Those of CUDA 12 have no nvcc, so clang compiles for it.
FROM source AS build-gpu
ARG CUDA=13
# Default: 75;80;86;89;90;100;120 of CUDA 13, 70;75;80;86;89;90 of CUDA 12.
ARG CUDA_ARCHITECTURES
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends python3-pip && \
    case "$CUDA" in \
      13) pip install --quiet --no-cache-dir --break-system-packages --root-user-action=ignore --target /opt/wheels \
            'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-nvvm==13.0.*' 'nvidia-cuda-cccl==13.0.*' \
            'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-nvrtc==13.0.*' 'nvidia-cublas==13.0.*' 'nvidia-cudnn-cu13>=9.8,<10' \
            'nvidia-nccl-cu13>=2.27,<3' && \
          cd /opt/wheels/nvidia && ln -s lib cu13/lib64 && \
          for library in cu13/lib/*.so.* cudnn/lib/libcudnn.so.9 nccl/lib/libnccl.so.2; do \
            ln -s "$(basename "$library")" "${library%%.so.*}.so"; \
          done && \
          mkdir /opt/cuda && ln -s /opt/wheels/nvidia/cu13 /opt/cuda/toolkit && \
          ln -s /opt/wheels/nvidia/cudnn /opt/wheels/nvidia/nccl /opt/wheels /opt/cuda/ && \
          echo /opt/cuda/toolkit/bin/nvcc >/opt/cuda/compiler && echo '75;80;86;89;90;100;120' >/opt/cuda/architectures ;; \
      12) apt-get install -qq -y --no-install-recommends clang-19 && deploy/cuda12_toolkit.sh /opt/cuda && \
          ln -s . /opt/cuda/toolkit && ln -s lib64 /opt/cuda/lib && \
          dpkg-query -W -f 'build deb ${Package} ${Version}\n' clang-19 >>/built-with && \
          echo clang++-19 >/opt/cuda/compiler && echo '70;75;80;86;89;90' >/opt/cuda/architectures ;; \
      *) echo "CUDA=$CUDA: 12 and 13 are supported" >&2; exit 1 ;; \
    esac && rm -rf /var/lib/apt/lists/*
ARG REVISION=unknown
RUN cmake --preset cuda "-DAMPD_REVISION=$REVISION" -DAMPD_BUILD_TESTS=OFF "-DCMAKE_CUDA_COMPILER=$(cat /opt/cuda/compiler)" \
      -DCUDAToolkit_ROOT=/opt/cuda/toolkit -DAMPD_CUDNN=/opt/cuda/cudnn -DAMPD_NCCL=/opt/cuda/nccl \
      "-DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES:-$(cat /opt/cuda/architectures)}" \
      $([ "$CUDA" = 13 ] || echo -DCMAKE_CUDA_RUNTIME_LIBRARY=Shared) && \
    cmake --build --preset cuda --target ampd ampd-worker ampctl && \
    mkdir /out && strip -o /out/ampd build/cuda/bin/ampd && strip -o /out/ampd-worker build/cuda/bin/ampd-worker && \
    strip -o /out/ampctl build/cuda/bin/ampctl
# What the worker is linked to, and what cuDNN loads when it runs: no more of the toolkit.
RUN mkdir /cuda && cd /opt/cuda && \
    cp "toolkit/lib/libcublasLt.so.$CUDA" "toolkit/lib/libnvrtc.so.$CUDA" toolkit/lib/libnvrtc-builtins.so.*.* cudnn/lib/libcudnn*.so.9 \
      nccl/lib/libnccl.so.2 /cuda/ && \
    if [ "$CUDA" = 12 ]; then cp toolkit/lib/libcudart.so.12 /cuda/; fi && \
    awk '/^Name: / {name = $2} /^Version: / {print name ~ /cublas|nvrtc|cudnn|nccl|runtime/ ? "runtime" : "build", "pypi", name, $2; nextfile}' \
      wheels/*.dist-info/METADATA >>/built-with

FROM runtime AS sbom-gpu
USER root
COPY deploy/sbom.sh /sbom.sh
COPY --from=build-gpu /built-with /built-with
COPY --from=build-gpu /out /out
ARG AMPD_VERSION
RUN /sbom.sh ampd-gpu "$AMPD_VERSION" /out /built-with >/sbom.spdx.json

FROM runtime AS gpu
LABEL org.opencontainers.image.description="Trains neural networks in mixed precision; CUDA build"
# For the container toolkit: the driver's CUDA, and NVML, through which GPUs are found.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER root
COPY --from=build-gpu /cuda /usr/local/lib/ampd-cuda
RUN echo /usr/local/lib/ampd-cuda >/etc/ld.so.conf.d/ampd-cuda.conf && ldconfig
COPY --from=build-gpu /out /usr/local/bin/
COPY --from=sbom-gpu /sbom.spdx.json /usr/share/ampd/
ARG REVISION=unknown
LABEL org.opencontainers.image.revision="${REVISION}"
USER ampd

# For deploy/compose.yaml: reads the event files of the volume that holds the daemon's state.
FROM ${BASE} AS tensorboard
RUN apt-get update -qq && \
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3-venv && \
    rm -rf /var/lib/apt/lists/* && \
    python3 -m venv /opt/tensorboard && \
    /opt/tensorboard/bin/pip install --quiet --no-cache-dir 'tensorboard==2.19.*' 'setuptools<81'
USER 7070:7070
EXPOSE 6006
ENTRYPOINT ["/opt/tensorboard/bin/tensorboard"]
CMD ["--logdir", "/state/tensorboard", "--host", "0.0.0.0", "--port", "6006"]

# Without --target.
FROM cpu
