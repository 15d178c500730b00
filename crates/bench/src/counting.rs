//! A global allocator that counts allocations and the bytes in use.

#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
};

struct CountingAllocator;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The number of allocations so far, of all threads.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.load(Relaxed)
}

/// The bytes in use now, as requested: the allocator's own overhead is not counted.
pub(crate) fn live_bytes() -> i64 {
    LIVE_BYTES.load(Relaxed)
}

fn count(grown: usize, shrunk: usize) {
    let bytes = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
    LIVE_BYTES.fetch_add(bytes(grown) - bytes(shrunk), Relaxed);
}

// SAFETY: every call is passed on unchanged to the system's allocator. Counting only changes atomics, so it
// neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        count(layout.size(), 0);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same there.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the pointer came from `System.alloc` or `System.realloc`, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        count(size, layout.size());
        // SAFETY: as for `dealloc`; the caller guarantees that the new size is valid.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
