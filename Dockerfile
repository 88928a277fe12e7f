# Two images from one file: `aloft` (no cgo, simulated or no GPU) and `nvml`
# (reads NVIDIA GPUs). `make image` and `make image-nvml` build them.

FROM golang:1.26-bookworm AS source
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .

FROM source AS build
RUN CGO_ENABLED=0 go build -trimpath -ldflags=-s -o /out/aloft ./cmd/aloft

FROM source AS build-nvml
RUN CGO_ENABLED=1 go build -trimpath -ldflags=-s -o /out/aloft ./cmd/aloft

# llama.cpp's shared libraries, at the version and hash of the lock file.
FROM node:20-bookworm-slim AS engine
COPY configs/engine/ /fetch/
RUN mkdir /out && cp -a "$(/fetch/fetch.sh /cache)" /out/lib

# Everything but the program. llama.cpp needs libstdc++, and a job template may
# name any program, so the base has a C++ runtime and a shell.
FROM debian:bookworm-slim AS runtime
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates libstdc++6 \
 && rm -rf /var/lib/apt/lists/* \
 && install -d -o 65532 -g 65532 /data
COPY --from=engine /out/lib /usr/local/lib/aloft
COPY LICENSE NOTICE configs/models/LICENSE-WORDNET /usr/share/doc/aloft/
ENV ALOFT_DATA=/data ALOFT_ENGINE_LIB=/usr/local/lib/aloft
WORKDIR /data
VOLUME /data
USER 65532:65532
EXPOSE 8080
STOPSIGNAL SIGTERM
# No key is needed for /readyz. bash speaks enough HTTP to save a client.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
  CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8080 && printf 'GET /readyz HTTP/1.0\\r\\n\\r\\n' >&3 && head -1 <&3 | grep -q ' 200 '"]
ENTRYPOINT ["aloft"]
CMD ["serve"]

FROM runtime AS nvml
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-nvml /out/aloft /usr/local/bin/aloft

# The last stage is what a plain `docker build .` makes.
FROM runtime AS aloft
COPY --from=build /out/aloft /usr/local/bin/aloft
