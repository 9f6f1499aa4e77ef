//! Handles, mappings, aliases, locations.

use super::facts::Facts;
use cudarc::driver::sys;
use harness::driver::Failure;
use harness::gpu::{self, Gpu, PAGE};
use harness::pattern;

pub(crate) fn observe(gpu: &Gpu, facts: &mut Facts) -> Result<(), Failure> {
    granularity(gpu, facts);
    reservations(gpu, facts);
    whole_handles_only(gpu, facts)?;
    lifetimes(gpu, facts)?;
    aliases(gpu, facts)?;
    host_location(gpu, facts)?;
    allocations(gpu, facts)
}

fn granularity(gpu: &Gpu, facts: &mut Facts) {
    for (name, properties) in [("device", gpu::device_memory()), ("host", gpu::host_memory())] {
        let mut bytes = 0;
        let code = gpu.driver.granularity(&mut bytes, &properties, 0);
        facts.code(&format!("granularity of {name} memory can be asked"), code, 0);
        facts.state(&format!("granularity of {name} memory"), bytes as u64, PAGE as u64);
    }
}

fn reservations(gpu: &Gpu, facts: &mut Facts) {
    let driver = &gpu.driver;
    let mut address = 0;
    facts.code("reserving 4 TiB", driver.address_reserve(&mut address, 4 << 40, 0, 0, 0), 0);
    facts.code("freeing part of a reservation", driver.address_free(address, 2 << 40), 1);
    facts.code("freeing a reservation", driver.address_free(address, 4 << 40), 0);
    let wanted = 0x4000_0000_0000;
    facts.code(
        "reserving 256 GiB at a chosen address",
        driver.address_reserve(&mut address, 256 << 30, 0, wanted, 0),
        0,
    );
    facts.state("where a chosen address is reserved", address, wanted);
    facts.code("freeing a chosen reservation", driver.address_free(address, 256 << 30), 0);
    facts.code("reserving an odd size", driver.address_reserve(&mut address, 4096 + 1, 0, 0, 0), 1);
}

fn whole_handles_only(gpu: &Gpu, facts: &mut Facts) -> Result<(), Failure> {
    let driver = &gpu.driver;
    let place = gpu.reserve(8 * PAGE)?;
    let large = gpu.create(2 * PAGE, &gpu::device_memory())?;
    facts.code("mapping part of a handle", driver.mem_map(place, PAGE, 0, large, 0), 801);
    facts.code("mapping a handle from an offset", driver.mem_map(place, PAGE, PAGE, large, 0), 801);
    facts.code("mapping a whole handle", driver.mem_map(place, 2 * PAGE, 0, large, 0), 0);
    facts.code("mapping over a mapping", driver.mem_map(place, 2 * PAGE, 0, large, 0), 1);
    facts.code("freeing a reservation with a mapping", driver.address_free(place, 8 * PAGE), 1);
    facts.code("unmapping part of a mapping", driver.mem_unmap(place, PAGE), 1);
    let next = gpu.create(PAGE, &gpu::device_memory())?;
    let after = place + 2 * PAGE as u64;
    facts.code("mapping the next handle", driver.mem_map(after, PAGE, 0, next, 0), 0);
    let access = gpu::device_access(true);
    facts.code("access to two mappings at once", driver.set_access(place, 3 * PAGE, &access, 1), 0);
    facts.code("access beyond the mappings", driver.set_access(place, 4 * PAGE, &access, 1), 1);
    facts.code("one copy across two handles", driver.set_d8(place + PAGE as u64, 1, 2 * PAGE), 0);
    gpu.synchronize()?;
    facts.code("unmapping two mappings at once", driver.mem_unmap(place, 3 * PAGE), 0);
    facts.code("unmapping where nothing is", driver.mem_unmap(place, PAGE), 0);
    facts.code("mapping at a distance", driver.mem_map(place, 2 * PAGE, 0, large, 0), 0);
    facts.code("mapping behind a hole", driver.mem_map(place + 3 * PAGE as u64, PAGE, 0, next, 0), 0);
    facts.code("access to part of a mapping", driver.set_access(place, PAGE, &access, 1), 1);
    facts.code("access across a hole", driver.set_access(place, 4 * PAGE, &access, 1), 0);
    facts.code(
        "unmapping part of a mapping across a hole",
        driver.mem_unmap(place + PAGE as u64, 3 * PAGE),
        1,
    );
    facts.code("unmapping across a hole", driver.mem_unmap(place, 4 * PAGE), 0);
    for handle in [large, next] {
        facts.code("releasing a handle", driver.mem_release(handle), 0);
    }
    facts.code("freeing an empty reservation", driver.address_free(place, 8 * PAGE), 0);
    Ok(())
}

fn lifetimes(gpu: &Gpu, facts: &mut Facts) -> Result<(), Failure> {
    let driver = &gpu.driver;
    let place = gpu.reserve(PAGE)?;
    let handle = gpu.create(PAGE, &gpu::device_memory())?;
    gpu.map(place, PAGE, handle)?;
    gpu.upload(place, &pattern::filled(1, PAGE))?;
    facts.code("releasing a mapped handle", driver.mem_release(handle), 0);
    facts.state(
        "words lost with a released, mapped handle",
        pattern::mismatches(1, &gpu.download(place, PAGE)?) as u64,
        0,
    );
    let mut again = 0;
    facts.code("asking for the handle of an address", driver.retain_handle(&mut again, place), 0);
    gpu.unmap(place, PAGE)?;
    gpu.map(place, PAGE, again)?;
    facts.state("words lost by mapping again", pattern::mismatches(1, &gpu.download(place, PAGE)?) as u64, 0);
    gpu.unmap(place, PAGE)?;
    facts.code("releasing the handle of an address", driver.mem_release(again), 0);
    facts.code("freeing the reservation", driver.address_free(place, PAGE), 0);
    Ok(())
}

fn aliases(gpu: &Gpu, facts: &mut Facts) -> Result<(), Failure> {
    let place = gpu.reserve(4 * PAGE)?;
    let handle = gpu.create(PAGE, &gpu::device_memory())?;
    for index in 0..4 {
        gpu.map(place + (index * PAGE) as u64, PAGE, handle)?;
    }
    let mut wrong = 0;
    for seed in 0..4 {
        let through = place + seed * PAGE as u64;
        gpu.upload(through, &pattern::filled(seed, PAGE))?;
        for index in 0..4 {
            wrong += pattern::mismatches(seed, &gpu.download(place + index * PAGE as u64, PAGE)?);
        }
    }
    facts.state("words that differ between aliases", wrong as u64, 0);
    gpu.unmap(place, 4 * PAGE)?;
    facts.code("releasing the aliased handle", gpu.driver.mem_release(handle), 0);
    facts.code("freeing the aliases' reservation", gpu.driver.address_free(place, 4 * PAGE), 0);
    Ok(())
}

fn host_location(gpu: &Gpu, facts: &mut Facts) -> Result<(), Failure> {
    let driver = &gpu.driver;
    let mut current = gpu::host_memory();
    current.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
    let mut handle = 0;
    let refused = driver.mem_create(&mut handle, PAGE, &current, 0);
    facts.code("creating at the current NUMA node", refused, 1);
    let place = gpu.reserve(PAGE)?;
    let handle = gpu.create(PAGE, &gpu::host_memory())?;
    gpu.map(place, PAGE, handle)?;
    gpu.upload(place, &pattern::filled(9, PAGE))?;
    facts.state(
        "words lost in host-located memory",
        pattern::mismatches(9, &gpu.download(place, PAGE)?) as u64,
        0,
    );
    let mut kind = 0u32;
    let code = driver.pointer_attribute((&raw mut kind).cast(), 2, place);
    facts.code("asking for the memory type of a host-located mapping", code, 0);
    facts.state("memory type of a host-located mapping", u64::from(kind), 1);
    let mut start = 1u64;
    driver.pointer_attribute((&raw mut start).cast(), 11, place);
    facts.holds("range start of a host-located mapping is its address", start == place);
    let (mut base, mut bytes) = (1, 1);
    let code = driver.address_range(&mut base, &mut bytes, place);
    facts.code("asking for the range of a host-located mapping", code, 0);
    facts.state("base of the range of a host-located mapping", base, 0);
    facts.state("bytes of the range of a host-located mapping", bytes as u64, PAGE as u64);
    gpu.unmap(place, PAGE)?;
    driver.mem_release(handle);
    driver.address_free(place, PAGE);
    Ok(())
}

fn allocations(gpu: &Gpu, facts: &mut Facts) -> Result<(), Failure> {
    let driver = &gpu.driver;
    let mut address = 0;
    facts.code("allocating nothing", driver.mem_alloc(&mut address, 0), 1);
    facts.code("freeing null", driver.mem_free(0), 0);
    let asked = 3 * PAGE + 1000;
    let address = gpu.alloc(asked)?;
    let (mut base, mut bytes) = (0, 0);
    facts.code(
        "asking for an allocation's range",
        driver.address_range(&mut base, &mut bytes, address + 5000),
        0,
    );
    facts.holds("an allocation's range begins at its address", base == address);
    facts.state("bytes of an allocation's range", bytes as u64, asked as u64);
    facts.code("freeing an inner address", driver.mem_free(address + 4096), 1);
    facts.code("freeing an allocation", driver.mem_free(address), 0);
    facts.code("freeing twice", driver.mem_free(address), 1);
    let place = gpu.reserve(PAGE)?;
    let handle = gpu.create(PAGE, &gpu::device_memory())?;
    gpu.map(place, PAGE, handle)?;
    let mut exported = [0; 64];
    facts.code("a legacy IPC handle of a mapping", driver.ipc_handle(&mut exported, place), 1);
    facts.code("freeing a mapping as an allocation", driver.mem_free(place), 1);
    gpu.unmap(place, PAGE)?;
    driver.mem_release(handle);
    driver.address_free(place, PAGE);
    Ok(())
}
