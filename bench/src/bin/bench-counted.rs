//! `bench-driver` with an allocator that counts: at the end, the number of allocations is written to the file that the variable
//! `DRAKKAR_ALLOCATIONS` names.

#![allow(unsafe_code, reason = "a global allocator is unsafe to implement; this one only counts")]

#[path = "bench-driver.rs"]
mod driver;

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator, with a count of allocations and reallocations.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

fn main() -> ExitCode {
    let code = driver::main();
    let count = ALLOCATIONS.load(Ordering::Relaxed);
    let Some(path) = std::env::var_os("DRAKKAR_ALLOCATIONS") else { return code };
    match std::fs::write(path, count.to_string()) {
        Ok(()) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
