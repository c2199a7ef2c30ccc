//! Alone in its process: what it sets holds for all threads of one.

use std::collections::BTreeSet;
use std::sync::Barrier;

/// glibc begins heaps of threads at multiples of this.
const HEAP_BYTES: usize = 64 << 20;

const THREADS: usize = 16;

#[test]
fn threads_that_allocate_at_the_same_time_share_two_heaps() {
    assert!(machine::heaps::share());
    let barrier = Barrier::new(THREADS);
    let heaps: BTreeSet<usize> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    let blocks: Vec<Box<[u8]>> = (0..100).map(|_| vec![1; 1000].into()).collect();
                    // Nobody gives its heap back before all have one.
                    barrier.wait();
                    blocks
                        .iter()
                        .map(|block| block.as_ptr().addr() / HEAP_BYTES)
                        .collect()
                })
            })
            .collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_default());
        joined.flat_map(|heaps: BTreeSet<usize>| heaps).collect()
    });
    // One more, if the main heap lies across such a multiple.
    assert!((1..=3).contains(&heaps.len()), "{heaps:?}");
}
