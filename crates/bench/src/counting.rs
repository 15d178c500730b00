//! An allocator that counts: how often, and how many bytes are alive.

#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often memory was asked for so far, by all threads.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.load(Relaxed)
}

/// How many bytes are in use now, as asked for: what the allocator adds to each is not counted.
pub(crate) fn live_bytes() -> i64 {
    LIVE_BYTES.load(Relaxed)
}

fn count(grown: usize, shrunk: usize) {
    let bytes = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
    LIVE_BYTES.fetch_add(bytes(grown) - bytes(shrunk), Relaxed);
}

// SAFETY: every call is passed on to the system's allocator as it came; counting touches atomics alone, so it
// neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
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
        // SAFETY: as for `dealloc`, and the caller vouches for the new size.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
