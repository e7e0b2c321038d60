# Replaces docker.io/library/redis:7, which a test does not pull.
FROM debian:bookworm-slim
RUN apt-get update -q && \
    DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends redis-server redis-tools && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /data
