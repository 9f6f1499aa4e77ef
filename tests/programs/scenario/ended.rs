//! Stories of streams, modules and contexts that end, and of what comes in their place.

use super::Told;
use super::scene::{Done, MAY_STREAM, Scene};
use harness::driver::check;
use harness::gpu::Argument::{Struct, Word};

const COUNT: u64 = 6;
const PAGES: u64 = 2;

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "an unknown kernel" => an_unknown_kernel(),
        "streams come and go" => streams_come_and_go(),
        "modules come and go" => modules_come_and_go(),
        "contexts come and go" => contexts_come_and_go(),
        "the primary context comes and goes" => the_primary_context_comes_and_goes(),
        "used in another context" => used_in_another_context(),
        _ => return None,
    })
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
