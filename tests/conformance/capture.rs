//! What may be done while a stream captures, and what the captured graph does.

use super::facts::Facts;
use harness::driver::{Failure, check};
use harness::gpu::{self, Gpu, PAGE};

const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

pub(crate) fn observe(gpu: &Gpu, facts: &mut Facts) -> Result<(), Failure> {
    replay(gpu, facts)?;
    allowed(gpu, facts)?;
    forbidden(gpu, facts)?;
    forbidden_in_every_mode(gpu, facts)?;
    other_streams(gpu, facts)
}

fn begin(gpu: &Gpu, stream: u64) -> Result<(), Failure> {
    check("cuStreamBeginCapture", gpu.driver.begin_capture(stream, GLOBAL))
}

/// Ends a capture; the code and the graph.
fn end(gpu: &Gpu, stream: u64) -> (u32, u64) {
    let mut graph = 0;
    (gpu.driver.end_capture(stream, &mut graph), graph)
}

fn replay(gpu: &Gpu, facts: &mut Facts) -> Result<(), Failure> {
    let driver = &gpu.driver;
    let (stream, memory) = (gpu.stream()?, gpu.alloc(8192)?);
    begin(gpu, stream)?;
    let mut status = 0;
    driver.is_capturing(stream, &mut status);
    facts.state("state of a capturing stream", u64::from(status), 1);
    facts.code("beginning twice", driver.begin_capture(stream, GLOBAL), 401);
    check("cuMemsetD8Async", driver.set_d8_async(memory, 7, 4096, stream))?;
    check("cuMemcpyDtoDAsync", driver.copy_d2d_async(memory + 4096, memory, 4096, stream))?;
    let (mut id, mut captured, mut nodes, mut edges, mut count) =
        (0, 0, std::ptr::null(), std::ptr::null(), 0);
    let code =
        driver.capture_info(stream, &mut status, &mut id, &mut captured, &mut nodes, &mut edges, &mut count);
    facts.code("asking a capture", code, 0);
    facts.state("nodes that the next one comes after", count as u64, 1);
    let (code, graph) = end(gpu, stream);
    facts.code("ending a capture", code, 0);
    facts.holds("the graph is the one that was shown", graph == captured);
    let mut executable = 0;
    check("cuGraphInstantiate", driver.graph_instantiate(&mut executable, graph, 0))?;
    check("cuMemsetD8", driver.set_d8(memory, 0, 8192))?;
    gpu.synchronize()?;
    facts.state(
        "a capture runs nothing",
        gpu.download(memory, 8192)?.iter().map(|byte| u64::from(*byte)).sum(),
        0,
    );
    check("cuGraphLaunch", driver.graph_launch(executable, stream))?;
    gpu.synchronize()?;
    let sum = gpu.download(memory, 8192)?.iter().map(|byte| u64::from(*byte)).sum();
    facts.state("a replay runs all nodes in order", sum, 7 * 8192);
    check("cuGraphExecDestroy", driver.executable_destroy(executable))?;
    check("cuGraphDestroy", driver.graph_destroy(graph))?;
    gpu.free(memory)?;
    check("cuStreamDestroy", driver.stream_destroy(stream))
}

fn allowed(gpu: &Gpu, facts: &mut Facts) -> Result<(), Failure> {
    let driver = &gpu.driver;
    let stream = gpu.stream()?;
    let place = gpu.reserve(PAGE)?;
    let host = vec![0u8; 2 * PAGE];
    let page = (host.as_ptr() as u64).next_multiple_of(4096);
    begin(gpu, stream)?;
    let mut handle = 0;
    facts.code(
        "creating memory in a capture",
        driver.mem_create(&mut handle, PAGE, &gpu::device_memory(), 0),
        0,
    );
    facts.code("mapping in a capture", driver.mem_map(place, PAGE, 0, handle, 0), 0);
    facts.code("giving access in a capture", driver.set_access(place, PAGE, &gpu::device_access(true), 1), 0);
    let mut mode = RELAXED;
    check("cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode(&mut mode))?;
    facts.state("the mode of a thread at first", u64::from(mode), u64::from(GLOBAL));
    facts.code("registering in relaxed mode", driver.host_register(page, PAGE, 0), 0);
    let mut address = 0;
    facts.code("allocating in relaxed mode", driver.mem_alloc(&mut address, PAGE), 0);
    check("cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode(&mut mode))?;
    facts.state("the mode of a thread after", u64::from(mode), u64::from(RELAXED));
    let (code, graph) = end(gpu, stream);
    facts.code("the capture has survived all that", code, 0);
    driver.graph_destroy(graph);
    driver.host_unregister(page);
    gpu.free(address)?;
    gpu.unmap(place, PAGE)?;
    driver.mem_release(handle);
    driver.address_free(place, PAGE);
    check("cuStreamDestroy", driver.stream_destroy(stream))
}

/// Neither the capture's mode nor the thread's allows it.
fn forbidden_in_every_mode(gpu: &Gpu, facts: &mut Facts) -> Result<(), Failure> {
    let driver = &gpu.driver;
    let stream = gpu.stream()?;
    check("cuStreamBeginCapture", driver.begin_capture(stream, RELAXED))?;
    let mut mode = RELAXED;
    check("cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode(&mut mode))?;
    facts.code("synchronizing with a context in relaxed mode", driver.context_synchronize(), 900);
    check("cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode(&mut mode))?;
    let (code, _) = end(gpu, stream);
    facts.code("the capture after synchronizing with its context in relaxed mode", code, 901);
    check("cuStreamDestroy", driver.stream_destroy(stream))
}

fn forbidden(gpu: &Gpu, facts: &mut Facts) -> Result<(), Failure> {
    let driver = &gpu.driver;
    let (event, memory) = (gpu.event()?, gpu.alloc(4096)?);
    gpu.record(event, 0)?;
    gpu.synchronize()?;
    let mut refused = |name: &str, code: u32, call: &dyn Fn(u64) -> u32| -> Result<(), Failure> {
        let stream = gpu.stream()?;
        begin(gpu, stream)?;
        facts.code(name, call(stream), code);
        let (ended, graph) = end(gpu, stream);
        facts.code(&format!("the capture after {name}"), ended, 901);
        facts.state(&format!("the graph after {name}"), graph, 0);
        check("cuStreamDestroy", driver.stream_destroy(stream))
    };
    refused("allocating in a capture", 900, &|_| {
        let mut address = 0;
        driver.mem_alloc(&mut address, PAGE)
    })?;
    refused("synchronizing with a capturing stream", 900, &|stream| driver.stream_synchronize(stream))?;
    refused("asking a capturing stream", 900, &|stream| driver.stream_query(stream))?;
    refused("synchronizing with a context in a capture", 900, &|_| driver.context_synchronize())?;
    refused("asking an event in a capture", 900, &|_| driver.event_query(event))?;
    refused("waiting for work outside of a capture", 905, &|stream| driver.stream_wait(stream, event, 0))?;
    driver.event_destroy(event);
    gpu.free(memory)
}

fn other_streams(gpu: &Gpu, facts: &mut Facts) -> Result<(), Failure> {
    let driver = &gpu.driver;
    let memory = gpu.alloc(4096)?;
    let (origin, side, event) = (gpu.stream()?, gpu.stream()?, gpu.event()?);
    let fork = || -> Result<(), Failure> {
        begin(gpu, origin)?;
        gpu.record(event, origin)?;
        gpu.wait(side, event)?;
        check("cuMemsetD8Async", driver.set_d8_async(memory, 1, 4096, side))
    };
    fork()?;
    facts.code("asking an event of a capture", driver.event_synchronize(event), 907);
    let _ = end(gpu, origin);

    fork()?;
    let (code, _) = end(gpu, origin);
    facts.code("ending with unjoined work", code, 904);

    fork()?;
    gpu.record(event, side)?;
    gpu.wait(origin, event)?;
    let (code, graph) = end(gpu, origin);
    facts.code("ending with joined work", code, 0);
    driver.graph_destroy(graph);

    let mut blocking = 0;
    check("cuStreamCreate", driver.stream_create(&mut blocking, 0))?;
    begin(gpu, blocking)?;
    facts.code(
        "the legacy stream beside a capturing blocking stream",
        driver.set_d8_async(memory, 1, 4096, 0),
        906,
    );
    let (code, _) = end(gpu, blocking);
    facts.code("the capture after that", code, 901);
    facts.code("capturing the legacy stream", driver.begin_capture(0, GLOBAL), 900);
    for stream in [origin, side, blocking] {
        check("cuStreamDestroy", driver.stream_destroy(stream))?;
    }
    driver.event_destroy(event);
    gpu.free(memory)
}
