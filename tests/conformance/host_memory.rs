//! Registered host memory and the rule that one copy stays within one registration.

use super::facts::Facts;
use harness::driver::{Failure, check};
use harness::gpu::{Gpu, PAGE};
use harness::pattern;

pub(crate) fn observe(gpu: &Gpu, facts: &mut Facts) -> Result<(), Failure> {
    let driver = &gpu.driver;
    let mut memory = vec![0u8; 6 * PAGE];
    let own = memory.as_ptr() as u64;
    let begin = own.next_multiple_of(PAGE as u64);
    let offset = (begin - own) as usize;
    memory[offset..offset + 4 * PAGE].copy_from_slice(&pattern::filled(3, 4 * PAGE));
    let middle = begin + 2 * PAGE as u64;
    check("cuMemHostRegister", driver.host_register(begin, 2 * PAGE, 0))?;
    check("cuMemHostRegister", driver.host_register(middle, 2 * PAGE, 0))?;
    facts.code("registering twice", driver.host_register(begin, PAGE, 0), 712);

    let target = gpu.alloc(4 * PAGE)?;
    let stream = gpu.stream()?;
    facts.code("a copy from one registration", driver.copy_h2d_async(target, begin, 2 * PAGE, stream), 0);
    let across = begin + PAGE as u64;
    facts.code("a copy across two registrations", driver.copy_h2d(target, across, 2 * PAGE), 1);
    facts.code(
        "a late copy across two registrations",
        driver.copy_h2d_async(target, across, 2 * PAGE, stream),
        1,
    );
    facts.code(
        "a copy to the host across two registrations",
        driver.copy_d2h_async(across, target, 2 * PAGE, stream),
        1,
    );
    check("cuStreamSynchronize", driver.stream_synchronize(stream))?;
    let data = gpu.download(target, 2 * PAGE)?;
    facts.state("words lost by a copy from registered memory", pattern::mismatches(3, &data) as u64, 0);

    facts.code("unregistering an inner address", driver.host_unregister(begin + 4096), 1);
    facts.code("unregistering", driver.host_unregister(begin), 0);
    facts.code("unregistering twice", driver.host_unregister(begin), 713);
    facts.code("a copy that runs into a registration", driver.copy_h2d(target, across, 2 * PAGE), 0);
    // The memory behind the second registration is not registered.
    let last = middle + PAGE as u64;
    let longer = PAGE + PAGE / 4;
    facts.code("a copy that runs out of a registration", driver.copy_h2d(target, last, longer), 1);
    facts.code("unregistering the other", driver.host_unregister(middle), 0);

    let pinned = gpu.host_alloc(PAGE)?;
    let mut device = 0u64;
    driver.pointer_attribute((&raw mut device).cast(), 3, pinned);
    facts.holds("page-locked memory has the same address on the device", device == pinned);
    facts.code("freeing page-locked memory", driver.host_free(pinned), 0);
    gpu.free(target)?;
    check("cuStreamDestroy", driver.stream_destroy(stream))
}
