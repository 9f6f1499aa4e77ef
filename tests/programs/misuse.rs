//! Does one thing right or wrong, by name, so that a test can see whether simcuda notices. Prints what the program itself
//! can see: `mismatches N`, `milliseconds N` or `code N`.

use harness::driver::{Failure, check};
use harness::gpu::Argument::{Number, Struct, Word};
use harness::gpu::{self, Gpu, Handle, PAGE, Style};
use harness::pattern;
use harness::sim::Sim;
use std::time::Instant;

type Done = Result<(), Failure>;

const BYTES: u64 = PAGE as u64;

/// Two streams, a page under two addresses, a pinned source, a counter.
struct Stage {
    gpu: Gpu,
    compute: u64,
    copy: u64,
    first: u64,
    second: u64,
    source: u64,
    counter: u64,
    event: u64,
}

#[expect(clippy::print_stdout, reason = "the output is the result")]
fn say(what: &str, value: u64) {
    println!("{what} {value}");
}

impl Stage {
    fn set() -> Result<Self, Failure> {
        let mut gpu = Gpu::open()?;
        gpu.load_kernels()?;
        let place = gpu.reserve(2 * PAGE)?;
        let handle = gpu.create(PAGE, &gpu::device_memory())?;
        gpu.map(place, PAGE, handle)?;
        gpu.map(place + BYTES, PAGE, handle)?;
        let source = gpu.host_alloc(PAGE)?;
        let counter = gpu.alloc(8)?;
        gpu.upload(counter, &[0; 8])?;
        gpu.upload(place, &pattern::filled(1, PAGE))?;
        let (compute, copy, event) = (gpu.stream()?, gpu.stream()?, gpu.event()?);
        Ok(Self { gpu, compute, copy, first: place, second: place + BYTES, source, counter, event })
    }

    /// A kernel on the compute stream that reads the page through its first address for a while.
    fn read(&self, seed: u64) -> Done {
        let arguments = [Word(self.first), Word(BYTES), Word(seed), Word(self.counter), Word(20_000)];
        self.gpu.launch("check_slow", self.compute, &arguments)
    }

    /// Overwrites the page through its second address, from the copy stream.
    fn overwrite(&self) -> Done {
        check("cuMemcpyHtoDAsync", self.gpu.driver.copy_h2d_async(self.second, self.source, PAGE, self.copy))
    }

    /// Orders the streams.
    fn order(&self, before: u64, after: u64) -> Done {
        self.gpu.record(self.event, before)?;
        self.gpu.wait(after, self.event)
    }

    fn finish(&self) -> Done {
        self.gpu.synchronize()?;
        say("mismatches", self.gpu.word(self.counter)?);
        Ok(())
    }
}

fn overwrite_while_read(ordered: bool) -> Done {
    let stage = Stage::set()?;
    stage.read(1)?;
    if ordered {
        stage.order(stage.compute, stage.copy)?;
    }
    stage.overwrite()?;
    stage.finish()
}

fn read_before_copied(ordered: bool) -> Done {
    let stage = Stage::set()?;
    let data = pattern::filled(2, PAGE);
    check("cuMemcpy", stage.gpu.driver.copy(stage.source, data.as_ptr() as u64, PAGE))?;
    stage.overwrite()?;
    if ordered {
        stage.order(stage.copy, stage.compute)?;
    }
    stage.read(2)?;
    stage.finish()
}

fn unmap_while_read() -> Done {
    let stage = Stage::set()?;
    stage.read(1)?;
    stage.gpu.unmap(stage.first, PAGE)?;
    say("code", stage.gpu.synchronize().map_or_else(|failure| u64::from(failure.code), |()| 0));
    Ok(())
}

fn protect_while_read(at: impl Fn(&Stage) -> u64, ended: bool) -> Done {
    let stage = Stage::set()?;
    stage.read(1)?;
    if ended {
        stage.gpu.synchronize()?;
    }
    let list = gpu::device_access(false);
    check("cuMemSetAccess", stage.gpu.driver.set_access(at(&stage), PAGE, &list, 1))?;
    stage.finish()
}

fn free_while_read() -> Done {
    let stage = Stage::set()?;
    let memory = stage.gpu.alloc(PAGE)?;
    stage.gpu.upload(memory, &pattern::filled(4, PAGE))?;
    let arguments = [Word(memory), Word(BYTES), Word(4), Word(stage.counter), Word(20_000)];
    stage.gpu.launch("check_slow", stage.compute, &arguments)?;
    stage.gpu.free(memory)?;
    stage.finish()
}

fn unregister_while_copied() -> Done {
    let stage = Stage::set()?;
    let memory = vec![0u8; 2 * PAGE];
    let page = (memory.as_ptr() as u64).next_multiple_of(4096);
    check("cuMemHostRegister", stage.gpu.driver.host_register(page, PAGE, 0))?;
    check("cuMemcpyHtoDAsync", stage.gpu.driver.copy_h2d_async(stage.first, page, PAGE, stage.copy))?;
    check("cuMemHostUnregister", stage.gpu.driver.host_unregister(page))?;
    // The copy may find its source gone; what counts is the journal.
    let _ = stage.gpu.synchronize();
    Ok(())
}

fn stale_word(followed: bool) -> Done {
    let stage = Stage::set()?;
    let nowhere = stage.gpu.reserve(PAGE)?;
    let weight = if followed { nowhere } else { stage.first };
    let words = vec![nowhere, weight, BYTES, 1, stage.counter, 0, 0, 0];
    stage.gpu.launch("check_struct", stage.compute, &[Struct(words)])?;
    say("code", stage.gpu.synchronize().map_or_else(|failure| u64::from(failure.code), |()| 0));
    Ok(())
}

fn wait_for_nothing() -> Done {
    let stage = Stage::set()?;
    stage.gpu.wait(stage.compute, stage.event)
}

fn graph(joined: bool) -> Done {
    let stage = Stage::set()?;
    let driver = &stage.gpu.driver;
    check("cuStreamBeginCapture", driver.begin_capture(stage.compute, 0))?;
    stage.order(stage.compute, stage.copy)?;
    stage.read(1)?;
    if joined {
        stage.order(stage.compute, stage.copy)?;
    }
    stage.overwrite()?;
    stage.order(stage.copy, stage.compute)?;
    let (mut graph, mut executable) = (0, 0);
    check("cuStreamEndCapture", driver.end_capture(stage.compute, &mut graph))?;
    check("cuGraphInstantiate", driver.graph_instantiate(&mut executable, graph, 0))?;
    check("cuGraphLaunch", driver.graph_launch(executable, stage.compute))?;
    stage.finish()
}

/// Two kernels that take 150 ms each, the second one waiting for the first or not.
fn successive(style: Style) -> Done {
    let stage = Stage::set()?;
    let begin = Instant::now();
    for style in [Style::Extended, style] {
        stage.gpu.launch_as("pause", Handle::Kernel, style, stage.compute, &[Word(150_000)])?;
    }
    stage.gpu.synchronize()?;
    say("milliseconds", begin.elapsed().as_millis() as u64);
    Ok(())
}

/// A kernel writes, the next one reads the same bytes.
fn write_then_read(style: Style) -> Done {
    let stage = Stage::set()?;
    let driver = &stage.gpu.driver;
    // Something slow first, so that both launches are queued before either runs.
    stage.gpu.launch("pause", stage.compute, &[Word(20_000)])?;
    stage.gpu.launch("fill", stage.compute, &[Word(stage.first), Word(BYTES), Word(3)])?;
    let arguments = [Word(stage.first), Word(BYTES), Word(3), Word(stage.counter)];
    stage.gpu.launch_as("check", Handle::Function, style, stage.compute, &arguments)?;
    check("cuStreamSynchronize", driver.stream_synchronize(stage.compute))?;
    stage.finish()
}

/// Every way to pass arguments, and reads through an array in memory.
fn every_launch() -> Done {
    let stage = Stage::set()?;
    let arguments = [Word(stage.first), Word(BYTES), Word(1), Word(stage.counter)];
    for kind in [Handle::Kernel, Handle::Function] {
        for style in [Style::Parameters, Style::Packed, Style::Extended] {
            stage.gpu.launch_as("check", kind, style, stage.compute, &arguments)?;
        }
    }
    let (array, out) = (stage.gpu.alloc(32)?, stage.gpu.alloc(64)?);
    let weights = [Word(stage.first), Word(stage.second), Word(0), Word(0)];
    let prepared: Vec<_> = [Word(array)].into_iter().chain(weights).chain([Word(2)]).collect();
    stage.gpu.launch("prepare_pointers", stage.compute, &prepared)?;
    let seeds = Struct(vec![1, 1, 0, 0]);
    let indirect = [Word(array), Word(2), Word(BYTES), seeds, Word(stage.counter)];
    stage.gpu.launch("check_indirect", stage.compute, &indirect)?;
    stage.gpu.launch_as(
        "add",
        Handle::Kernel,
        Style::Packed,
        stage.compute,
        &[Word(out), Word(stage.first), Word(stage.first), Number(16)],
    )?;
    stage.finish()?;
    let sum = stage.gpu.download(out, 4)?;
    let word = pattern::filled(1, 8);
    let float = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    say("sum is right", u64::from((float(&word) + float(&word)).to_bits() == float(&sum).to_bits()));
    Ok(())
}

fn memory_limit() -> Done {
    let stage = Stage::set()?;
    let mut address = 0;
    say("code", u64::from(stage.gpu.driver.mem_alloc(&mut address, 64 << 20)));
    let (mut free, mut total) = (0, 0);
    check("cuMemGetInfo", stage.gpu.driver.mem_info(&mut free, &mut total))?;
    say("total", total as u64);
    if let Some(sim) = Sim::find() {
        say("in use", sim.stat("device_bytes"));
        say("free and in use", sim.stat("device_bytes") + free as u64);
    }
    Ok(())
}

fn act(name: &str) -> Done {
    match name {
        "overwrite while read" => overwrite_while_read(false),
        "overwrite after read" => overwrite_while_read(true),
        "read before copied" => read_before_copied(false),
        "read after copied" => read_before_copied(true),
        "unmap while read" => unmap_while_read(),
        "protect while read" => protect_while_read(|stage| stage.first, false),
        "protect after read" => protect_while_read(|stage| stage.first, true),
        "protect another address" => protect_while_read(|stage| stage.second, false),
        "free while read" => free_while_read(),
        "unregister while copied" => unregister_while_copied(),
        "stale word" => stale_word(false),
        "stale word followed" => stale_word(true),
        "wait for nothing" => wait_for_nothing(),
        "graph without an edge" => graph(false),
        "graph with an edge" => graph(true),
        "successive" => successive(Style::Extended),
        "overlapping" => successive(Style::Programmatic),
        "write then read" => write_then_read(Style::Extended),
        "write beside read" => write_then_read(Style::Programmatic),
        "every launch" => every_launch(),
        "memory limit" => memory_limit(),
        other => panic!("no such act: {other}"),
    }
}

#[expect(clippy::print_stderr, reason = "a program speaks by its output")]
fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    if let Err(failure) = act(&name) {
        eprintln!("{name}: {failure}");
        std::process::exit(2);
    }
}
