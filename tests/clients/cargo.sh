#!/bin/sh
# URL: vendors openshell-tiny from the sparse index at URL. CARGO says which cargo; no compiler is needed.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
export CARGO_HOME="$directory/home" CARGO_NET_RETRY=0 CARGO_REGISTRIES_TINY_INDEX="sparse+$1"
mkdir -p "$directory/user/src"
cd "$directory/user"
: >src/lib.rs
cat >Cargo.toml <<'MANIFEST'
[package]
name = "user"
version = "0.1.0"
edition = "2021"
[dependencies]
openshell-tiny = { version = "1", registry = "tiny" }
MANIFEST
"$CARGO" vendor -q >/dev/null
grep -q reached vendor/openshell-tiny/src/lib.rs
echo reached cargo
