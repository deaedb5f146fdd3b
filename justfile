# The everyday commands. `just` alone lists them.

default:
    @just --list

# See it work.
demo:
    cargo run -- demo

# All tests.
test:
    cargo test --workspace

# What a change must pass.
ci:
    .ci/run

# Format everything.
fmt:
    cargo fmt --all

# Lints, with warnings denied.
lint:
    cargo clippy --workspace --all-targets -- -D warnings

# The documentation, in a browser.
doc:
    cargo doc --workspace --no-deps --open

# Measure.
bench:
    cargo bench -p drakkar-metadata

# Measure a driver beside one on Kubernetes' Go framework; needs Go.
compare:
    cargo xtask bench

# The command alone, static and small, for scratch images.
static:
    RUSTFLAGS='-C target-feature=+crt-static -C relocation-model=static' cargo build -p drakkar --no-default-features --profile tiny --target x86_64-unknown-linux-gnu

# Fuzz one target (decode or paths) for some seconds; needs a nightly toolchain and cargo-fuzz.
fuzz target="decode" seconds="60":
    cd crates/metadata && mkdir -p fuzz/corpus/{{target}} && cargo +nightly fuzz run {{target}} fuzz/corpus/{{target}} fuzz/seeds/{{target}} -- -max_total_time={{seconds}}
