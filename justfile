# The everyday commands. `just` alone lists them.

default:
    @just --list

# Run the demo.
demo:
    cargo run -- demo

# Run all tests.
test:
    cargo test --workspace

# Run everything that a change must pass.
ci:
    .ci/run

# Format everything.
fmt:
    cargo fmt --all

# Run the lints, with warnings denied.
lint:
    cargo clippy --workspace --all-targets -- -D warnings

# Open the documentation in a browser.
doc:
    cargo doc --workspace --no-deps --open

# Measure reading and writing of metadata.
bench:
    cargo bench -p drakkar-metadata

# Compare a driver with one on Kubernetes' Go framework; needs Go.
compare:
    cargo xtask bench

# Build the small static command, for scratch images.
static:
    RUSTFLAGS='-C target-feature=+crt-static -C relocation-model=static' cargo build -p drakkar --no-default-features --profile tiny --target x86_64-unknown-linux-gnu

# Fuzz a target (decode or paths of metadata; mux, ttrpc or session of nri) for a number of seconds; needs a nightly toolchain and cargo-fuzz.
fuzz target="decode" seconds="60" crate="metadata":
    cd crates/{{crate}} && mkdir -p fuzz/corpus/{{target}} && cargo +nightly fuzz run {{target}} fuzz/corpus/{{target}} fuzz/seeds/{{target}} -- -max_total_time={{seconds}}
