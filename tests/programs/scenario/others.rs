//! Stories beside the launches of a forward: graphs, pointers that escape, memory that is freed, streams, modules and contexts that end.

use super::Told;
use super::scene::{INDIRECT, MAY_STREAM, Scene};
use cudarc::driver::sys;
use harness::driver::{Failure, check};
use harness::gpu::Argument::{Struct, Word};

type Done = Result<(), Failure>;

const COUNT: u64 = 6;
const PAGES: u64 = 2;

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "a graph captured after the switch" => a_graph(When::Switched),
        "a graph captured while learning" => a_graph(When::Named),
        "a graph captured before naming" => a_graph(When::Unnamed),
        "a graph captured while pointers are held" => a_graph_while_pointers_are_held(),
        "an unknown kernel" => an_unknown_kernel(),
        "an address in a copy" => {
            an_address_escapes(|scene, address| scene.gpu.upload(scene.array, &address.to_le_bytes()))
        }
        "an address in a copy of any memory" => an_address_escapes(|scene, address| {
            check("cuMemcpy", scene.gpu.driver.copy(scene.array, (&raw const *address).addr() as u64, 8))
        }),
        "an address in an asynchronous copy of any memory" => an_address_escapes(|scene, address| {
            let source = (&raw const *address).addr() as u64;
            check("cuMemcpyAsync", scene.gpu.driver.copy_async(scene.array, source, 8, scene.main))
        }),
        "an address in a copy of pinned memory" => an_address_escapes(|scene, address| {
            let source = scene.gpu.host_alloc(4096)?;
            scene.gpu.upload(source, &address.to_le_bytes())?;
            check("cuMemcpyAsync", scene.gpu.driver.copy_async(scene.array, source, 8, scene.main))
        }),
        "an address in a copy of rows" => an_address_escapes(|scene, address| {
            let copy = rows_to(scene.array, address, sys::CUmemorytype::CU_MEMORYTYPE_HOST);
            check("cuMemcpy2D", scene.gpu.driver.copy_2d(&copy))
        }),
        "an address in a copy of rows of any memory" => an_address_escapes(|scene, address| {
            let copy = rows_to(scene.array, address, sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED);
            check("cuMemcpy2DAsync", scene.gpu.driver.copy_2d_async(&copy, scene.main))
        }),
        "freed and allocated" => freed_and_allocated(),
        "freed while it is read" => freed_while_it_is_read(),
        "frees that make no sense" => frees_that_make_no_sense(),
        "a handle for another process" => a_handle_for_another_process(),
        "asked to be private" => asked_to_be_private(),
        "private memory that is refused" => private_memory_that_is_refused(),
        "named after the end" => named_after_the_end(),
        "dropped and named again" => dropped_and_named_again(),
        "streams come and go" => streams_come_and_go(),
        "modules come and go" => modules_come_and_go(),
        "contexts come and go" => contexts_come_and_go(),
        "the primary context comes and goes" => the_primary_context_comes_and_goes(),
        "used in another context" => used_in_another_context(),
        _ => return None,
    })
}

/// When a graph is captured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// The weights have no names yet.
    Unnamed,
    Named,
    Switched,
}

/// Inside an owner whose weight is read through pointers, the stream that reads it begins to capture, and captures a launch that shows it.
fn a_graph_while_pointers_are_held() -> Told {
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM | INDIRECT)?;
    scene.learn()?;
    let (mut graph, mut executable) = (0, 0);
    let mut captured = false;
    scene.pass_with(|scene, at| {
        let weight = scene.weights[at];
        scene.launch("prepare_pointers", &[scene.array, weight.address, 0, 0, 0, 1])?;
        scene.check(scene.main, at)?;
        if at == 2 && !std::mem::replace(&mut captured, true) {
            let driver = &scene.gpu.driver;
            check("cuStreamBeginCapture", driver.begin_capture(scene.main, 0))?;
            scene.check(scene.main, at)?;
            check("cuStreamEndCapture", driver.end_capture(scene.main, &mut graph))?;
            check("cuGraphInstantiate", driver.graph_instantiate(&mut executable, graph, 0))?;
        }
        Ok(())
    })?;
    for _ in 0..2 {
        check("cuGraphLaunch", scene.gpu.driver.graph_launch(executable, scene.main))?;
        scene.pass()?;
    }
    scene.finish()
}

/// After the switch-over a kernel runs that never ran before. Says how often the driver was asked for parameters until then.
fn an_unknown_kernel() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    super::say("asked", super::pages::device_bytes("calls:cuKernelGetParamInfo"));
    for at in [2, 5] {
        let weight = scene.weights[at];
        let words = vec![0, weight.address, weight.bytes, weight.seed, scene.counter, 0, 0, 0];
        scene.gpu.launch("check_struct", scene.main, &[Struct(words)])?;
        scene.pass()?;
    }
    scene.finish()
}

/// A graph of two checks is launched between passes that take the pages of everything that streams.
fn a_graph(when: When) -> Told {
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    match when {
        When::Switched => scene.learn()?,
        When::Named => {}
        When::Unnamed => scene.drop_name(),
    }
    let driver = &scene.gpu.driver;
    check("cuStreamBeginCapture", driver.begin_capture(scene.main, 0))?;
    scene.check(scene.main, 1)?;
    scene.check(scene.main, 4)?;
    let (mut graph, mut executable) = (0, 0);
    check("cuStreamEndCapture", driver.end_capture(scene.main, &mut graph))?;
    check("cuGraphInstantiate", driver.graph_instantiate(&mut executable, graph, 0))?;
    if when == When::Unnamed {
        scene.name();
    }
    scene.learn()?;
    for _ in 0..3 {
        check("cuGraphLaunch", scene.gpu.driver.graph_launch(executable, scene.main))?;
        scene.pass()?;
    }
    scene.finish()
}

/// Kernels read a weight through a pointer that came by a small copy; nothing shows the weight.
fn an_address_escapes(copy: impl Fn(&Scene, &u64) -> Done) -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let weight = scene.weights[3];
    copy(&scene, &weight.address)?;
    scene.synchronize()?;
    for _ in 0..3 {
        scene.pass()?;
        let seeds = Struct(vec![weight.seed, 0, 0, 0]);
        let arguments = [Word(scene.array), Word(1), Word(weight.bytes), seeds, Word(scene.counter)];
        scene.gpu.launch("check_indirect", scene.main, &arguments)?;
    }
    scene.finish()
}

/// A copy of one word as a row.
fn rows_to(target: u64, word: &u64, kind: sys::CUmemorytype) -> sys::CUDA_MEMCPY2D {
    let source = std::ptr::from_ref(word);
    sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: kind,
        srcHost: source.cast(),
        srcDevice: source.addr() as u64,
        srcArray: std::ptr::null_mut(),
        srcPitch: 8,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: target,
        dstArray: std::ptr::null_mut(),
        dstPitch: 8,
        WidthInBytes: 8,
        Height: 1,
    }
}

/// Memory is freed directly behind a launch that reads it for long: the free waits, as the driver's does, whether the weight is streamed or stays.
fn freed_while_it_is_read() -> Told {
    let mut scene = Scene::learnt(COUNT, PAGES)?;
    for _ in 0..COUNT {
        let weight = scene.weights[0];
        let arguments = [weight.address, weight.bytes, weight.seed, scene.counter, 20_000];
        scene.launch("check_slow", &arguments)?;
        check("cuMemFree", scene.gpu.driver.mem_free(weight.address))?;
        scene.weights.remove(0);
    }
    scene.finish()
}

/// Says what the driver answers to frees of an inner address, of nothing, of something unknown, and of the same twice.
fn frees_that_make_no_sense() -> Told {
    let mut scene = Scene::learnt(COUNT, PAGES)?;
    let weight = scene.weights.remove(0);
    let free = |address| u64::from(scene.gpu.driver.mem_free(address));
    let inner = [weight.address + 4096, weight.address + weight.bytes / 2, weight.address + weight.bytes];
    for address in inner {
        super::say("inner", free(address));
    }
    super::say("nothing", free(0));
    super::say("unknown", free(0x1234_0000_0000));
    super::say("once", free(weight.address));
    super::say("twice", free(weight.address));
    scene.finish()
}

/// Says what the driver answers to a legacy handle of a weight's memory.
fn a_handle_for_another_process() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let mut exported = [0; 64];
    super::say("handle", u64::from(scene.gpu.driver.ipc_handle(&mut exported, scene.weights[1].address)));
    scene.pass()?;
    scene.finish()
}

/// Weights are freed while others are streamed; new memory at their addresses is nobody's weight.
fn freed_and_allocated() -> Told {
    let mut scene = Scene::learnt(COUNT, PAGES)?;
    for at in [1, 4] {
        let weight = scene.weights[at];
        scene.check(scene.main, at)?;
        scene.gpu.free(weight.address)?;
        scene.weights[at].address = scene.gpu.alloc(weight.bytes as usize)?;
        scene.weights[at].seed = 50 + at as u64;
        let weight = scene.weights[at];
        scene.launch("fill", &[weight.address, weight.bytes, weight.seed])?;
        scene.pass()?;
        scene.pass()?;
    }
    let wrong = scene.finish()?;
    for weight in scene.weights.drain(..) {
        scene.gpu.free(weight.address)?;
    }
    super::say("left", super::pages::device_bytes("device_bytes"));
    Ok(wrong)
}

fn asked_to_be_private() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    for at in [2, 0, 5] {
        let code = scene.ft.as_ref().map_or(0, |ft| ft.weight_private(scene.weights[at].address));
        assert_eq!(code, 0, "weight {at}");
        scene.pass()?;
    }
    scene.finish()
}

/// Says how often the calls were made that give a weight private pages, before one is asked for, and whether it was refused.
fn private_memory_that_is_refused() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    scene.pass()?;
    scene.synchronize()?;
    super::pages::mark("private");
    let code = scene.ft.as_ref().map_or(0, |ft| ft.weight_private(scene.weights[2].address));
    super::say("refused", u64::from(code == -3));
    for _ in 0..3 {
        scene.pass()?;
    }
    scene.finish()
}

/// Says whether owners and weights that come too late were refused.
fn named_after_the_end() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let (weight, ft) = (scene.weights[0], scene.ft.as_ref());
    let owner = ft.map_or(0, |ft| ft.model_owner(scene.model, 9, "late", "Linear", -1));
    let named =
        ft.map_or(0, |ft| ft.model_weight(scene.model, "late.weight", weight.address, weight.bytes, 9, 1));
    super::say("refused", u64::from((owner, named) == (-1, -1)));
    scene.finish()
}

fn dropped_and_named_again() -> Told {
    let mut scene = Scene::learnt(COUNT, PAGES)?;
    for _ in 0..2 {
        scene.drop_name();
        scene.pass()?;
        scene.name();
        scene.learn()?;
        scene.pass()?;
    }
    scene.finish()
}

/// Each read is on a stream that ends at once, with work on it.
fn streams_come_and_go() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    for _ in 0..4 {
        scene.pass_with(|scene, at| {
            let stream = scene.gpu.stream()?;
            let weight = scene.weights[at];
            let arguments = [weight.address, weight.bytes, weight.seed, scene.counter, 2000];
            scene.gpu.launch("check_slow", stream, &arguments.map(Word))?;
            check("cuStreamDestroy", scene.gpu.driver.stream_destroy(stream))
        })?;
    }
    scene.gpu.synchronize()?;
    scene.finish()
}

/// A module goes, and another one comes whose kernels may get its handles: with other parameters, and one that writes.
fn modules_come_and_go() -> Told {
    let mut scene = Scene::learnt(COUNT, PAGES)?;
    let text = |kernels: &[&str]| {
        let lines: String = kernels.iter().map(|kernel| format!("kernel {kernel}\n")).collect();
        std::ffi::CString::new(format!("simcuda\n{lines}")).expect("an image has no NUL")
    };
    let kernels = ["check", "check_struct", "write_words", "scale_inplace"];
    for round in 0..12_usize {
        let kernel = kernels[round % kernels.len()];
        let (mut module, mut function) = (0, 0);
        let (image, name) = (text(&[kernel]), std::ffi::CString::new(kernel).expect("no NUL"));
        let driver = &scene.gpu.driver;
        check("cuModuleLoadData", driver.module_load(&mut module, image.as_ptr()))?;
        check("cuModuleGetFunction", driver.module_function(&mut function, module, name.as_ptr()))?;
        for at in 0..COUNT as usize {
            use_once(&mut scene, kernel, function, at)?;
        }
        scene.synchronize()?;
        check("cuModuleUnload", scene.gpu.driver.module_unload(module))?;
        // Reads that have been proven to be reads bring the weights back from where they were written.
        scene.pass()?;
    }
    scene.finish()
}

/// One launch of a kernel, by a handle, on a weight; a writer's new pattern is noted.
fn use_once(scene: &mut Scene, kernel: &str, function: u64, at: usize) -> Done {
    let weight = scene.weights[at];
    let (address, bytes, counter) = (weight.address, weight.bytes, scene.counter);
    let stale = scene.weights[(at + 1) % COUNT as usize].address;
    let parameters: Vec<Vec<u64>> = match kernel {
        "check" => vec![vec![address], vec![bytes], vec![weight.seed], vec![counter]],
        "check_struct" => vec![vec![stale, address, bytes, weight.seed, counter, 0, 0, 0]],
        "write_words" => {
            scene.weights[at].seed += 1000;
            vec![vec![address], vec![bytes], vec![scene.weights[at].seed]]
        }
        _ => vec![vec![address], vec![0], vec![1]],
    };
    let pointers: Vec<*const std::ffi::c_void> =
        parameters.iter().map(|words| words.as_ptr().cast()).collect();
    let none = std::ptr::null();
    let driver = &scene.gpu.driver;
    check(
        "cuLaunchKernel",
        driver.launch(function, 1, 1, 1, 32, 1, 1, 0, scene.main, pointers.as_ptr(), none),
    )
}

/// A weight is read by a kernel, and another one by a copy, in a context of the same device that the ring is not of.
fn used_in_another_context() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let driver = &scene.gpu.driver;
    let mut context = 0;
    check("cuCtxCreate", driver.context_create(&mut context, 0, 0))?;
    check("cuCtxSetCurrent", driver.set_current(context))?;
    let mut gpu = harness::gpu::Gpu::open()?;
    check("cuCtxSetCurrent", driver.set_current(context))?;
    gpu.load_kernels()?;
    let weight = scene.weights[3];
    let arguments = [weight.address, weight.bytes, weight.seed, scene.counter].map(Word);
    gpu.launch("check", gpu.stream()?, &arguments)?;
    let data = gpu.download(scene.weights[4].address, weight.bytes as usize)?;
    let wrong = harness::pattern::mismatches(scene.weights[4].seed, &data) as u64;
    gpu.synchronize()?;
    check("cuCtxSetCurrent", driver.set_current(scene.gpu.context))?;
    scene.pass()?;
    scene.pass()?;
    Ok(wrong + scene.finish()?)
}

/// A context with a ring is destroyed; the next one has models and a ring of its own.
fn contexts_come_and_go() -> Told {
    let mut wrong = 0;
    for _ in 0..3 {
        let mut gpu = harness::gpu::Gpu::open()?;
        let mut context = 0;
        check("cuCtxCreate", gpu.driver.context_create(&mut context, 0, 0))?;
        check("cuCtxSetCurrent", gpu.driver.set_current(context))?;
        gpu.load_kernels()?;
        let mut scene = Scene::on(gpu, COUNT, PAGES, MAY_STREAM)?;
        scene.learn()?;
        scene.pass()?;
        scene.pass()?;
        wrong += scene.finish()?;
        check("cuCtxDestroy", scene.gpu.driver.context_destroy(context))?;
        super::say("left", super::pages::device_bytes("device_bytes"));
    }
    Ok(wrong)
}

/// The primary context ends with its last release, in the middle of learning or later; the next one has models and a ring of its own. Models of contexts
/// that are gone still report passes.
fn the_primary_context_comes_and_goes() -> Told {
    let (mut wrong, mut before): (u64, Option<Scene>) = (0, None);
    for round in 0..4 {
        let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
        if round % 2 == 0 {
            scene.learn()?;
        }
        for _ in 0..2 {
            scene.pass()?;
            if let Some(old) = &before {
                old.begin();
                old.end();
            }
        }
        wrong += scene.finish()?;
        check("cuDevicePrimaryCtxRelease", scene.gpu.driver.primary_release(0))?;
        super::say("left", super::pages::device_bytes("device_bytes"));
        before = Some(scene);
    }
    Ok(wrong)
}
