# The daemon, its worker and ampctl on Debian 12. Built by deploy/build_image.sh, or:
#   docker build --target cpu -t ampd:cpu .
#   docker run -p 7070:7070 -p 7071:7071 -v ampd-state:/var/lib/ampd -v DIR:/data:ro ampd:cpu
#
# gRPC beyond the container's loopback has no TLS and no tokens yet: publish the ports to hosts that you trust only.
ARG BASE=debian:12-slim

FROM ${BASE} AS build
ENV DEBIAN_FRONTEND=noninteractive
COPY deploy/packages.sh /src/deploy/packages.sh
RUN bash -c '. /src/deploy/packages.sh && ampd_install_packages "${AMPD_BUILD_PACKAGES[@]}"' && \
    rm -rf /var/lib/apt/lists/*
COPY . /src
WORKDIR /src
RUN cmake --preset release && \
    cmake --build --preset release --target ampd ampd-worker ampctl && \
    strip build/release/bin/ampd build/release/bin/ampd-worker build/release/bin/ampctl

FROM ${BASE} AS cpu
LABEL org.opencontainers.image.title="ampd" \
      org.opencontainers.image.description="Trains neural networks in mixed precision; CPU build" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
RUN apt-get update -qq && \
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
      libgrpc++1.51 libprotobuf32 libabsl20220623 libprometheus-cpp-core1.0 libcivetweb1 libsqlite3-0 libyaml-cpp0.7 \
      libssl3 zlib1g libjpeg62-turbo libpng16-16 libdnnl2 libgomp1 && \
    rm -rf /var/lib/apt/lists/* && \
    useradd --uid 7070 --shell /usr/sbin/nologin --home-dir /var/lib/ampd --create-home ampd && \
    mkdir -p /data
COPY --from=build /src/build/release/bin/ampd /src/build/release/bin/ampd-worker /src/build/release/bin/ampctl /usr/local/bin/
COPY --from=build /src/client/examples /usr/share/ampd/examples
COPY --from=build /src/LICENSE /usr/share/doc/ampd/LICENSE
ENV AMPD_LISTEN=0.0.0.0:7070 \
    AMPD_HTTP=0.0.0.0:7071 \
    AMPD_STATE_DIR=/var/lib/ampd \
    AMPD_DATA_ROOTS=/data
USER ampd
WORKDIR /var/lib/ampd
VOLUME /var/lib/ampd
EXPOSE 7070 7071
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=10s --start-period=10s \
  CMD ampctl --server 127.0.0.1:7070 devices
ENTRYPOINT ["ampd"]
CMD ["--insecure"]
