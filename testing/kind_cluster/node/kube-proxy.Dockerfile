# kube-proxy calls these programs; node-routes (default-cni.yaml) runs in the same image
ARG BASE
FROM $BASE
RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      conntrack iproute2 iptables kmod nftables >/dev/null && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb /usr/share/doc /usr/share/locale
COPY bin/kube-proxy /usr/local/bin/kube-proxy
