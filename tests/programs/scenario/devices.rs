//! Stories of several GPUs in one process: a model on each, one over both, and memory that both reach.

use super::Told;
use super::scene::{MAY_STREAM, Scene, Weight};
use harness::driver::{Failure, check};
use harness::gpu::Argument::Word;
use harness::gpu::{Gpu, PAGE};

type Done = Result<(), Failure>;

const COUNT: u64 = 6;
const PAGES: u64 = 2;
const BYTES: u64 = PAGES * PAGE as u64;

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "a model on each GPU" => a_model_on_each_gpu(),
        "a model on each GPU, by threads that change GPUs" => by_threads_that_change_gpus(),
        "a capture on the other GPU amid a forward" => amid_a_forward(captures_elsewhere),
        "a stream that is destroyed from the other GPU amid a forward" => {
            amid_a_forward(destroys_from_elsewhere)
        }
        "a model over two GPUs" => a_model_over_two_gpus(),
        "another GPU reads weights" => another_gpu_reads_weights(),
        "another GPU reads weights while they are learnt" => another_gpu_reads_while_learning(),
        "another GPU reaches protected weights" => another_gpu_reaches_protected_weights(),
        "freed while another GPU reads it" => freed_while_another_gpu_reads(),
        "copies between GPUs" => copies_between_gpus(false),
        "copies between GPUs that reach each other" => copies_between_gpus(true),
        _ => return None,
    })
}

fn second() -> Result<Gpu, Failure> {
    let mut gpu = Gpu::open_on(1)?;
    gpu.load_kernels()?;
    Ok(gpu)
}

/// Two scenes, the first on GPU 0; the last one's context is current.
fn one_on_each() -> Result<[Scene; 2], Failure> {
    let first = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    let other = Scene::on(second()?, COUNT, PAGES, MAY_STREAM)?;
    Ok([first, other])
}

/// Both are learnt at the same time, and both run, in turns and now and then twice.
fn a_model_on_each_gpu() -> Told {
    let scenes = one_on_each()?;
    in_turns(&scenes)?;
    finish_each(scenes)
}

fn in_turns(scenes: &[Scene; 2]) -> Done {
    for round in 0..12 {
        for scene in scenes {
            scene.gpu.enter()?;
            for _ in 0..1 + round % 2 {
                scene.pass()?;
            }
        }
    }
    Ok(())
}

/// Two threads, each on the GPU that the other one has just left.
fn by_threads_that_change_gpus() -> Told {
    let scenes = one_on_each()?;
    in_turns(&scenes)?;
    let changing = |thread: usize| -> Done {
        for round in 0..8 {
            let scene = &scenes[(thread + round) % 2];
            scene.gpu.enter()?;
            let stream = scene.gpu.stream()?;
            scene.pass_with(|scene, at| scene.check(stream, at))?;
            check("cuStreamSynchronize", scene.gpu.driver.stream_synchronize(stream))?;
        }
        Ok(())
    };
    let done: Done = std::thread::scope(|scope| {
        let changing = &changing;
        let running: Vec<_> = (0..2).map(|thread| scope.spawn(move || changing(thread))).collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("a thread ends"))
    });
    done?;
    finish_each(scenes)
}

/// The forward of the first GPU's model goes on behind what its thread did on the other GPU, where `between` is called with the weight's number.
fn amid_a_forward(between: fn(&[Scene; 2], usize) -> Done) -> Told {
    let scenes = one_on_each()?;
    in_turns(&scenes)?;
    for _ in 0..4 {
        scenes[0].gpu.enter()?;
        scenes[0].pass_with(|_, at| between(&scenes, at))?;
        scenes[0].synchronize()?;
    }
    finish_each(scenes)
}

/// The default stream has one name on both GPUs.
fn captures_elsewhere([here, there]: &[Scene; 2], at: usize) -> Done {
    const DEFAULT: u64 = 0;
    here.check(DEFAULT, at)?;
    there.gpu.enter()?;
    let mut graph = 0;
    check("cuStreamBeginCapture", there.gpu.driver.begin_capture(there.other, 2))?;
    check("cuStreamEndCapture", there.gpu.driver.end_capture(there.other, &mut graph))?;
    here.gpu.enter()?;
    here.check(DEFAULT, at)
}

/// A new stream each time. What marks its end may never have been needed before.
fn destroys_from_elsewhere([here, there]: &[Scene; 2], at: usize) -> Done {
    let streams: Vec<u64> = (0..3).map(|_| here.gpu.stream()).collect::<Result<_, _>>()?;
    streams.iter().try_for_each(|&stream| here.check(stream, at))?;
    there.gpu.enter()?;
    for stream in streams {
        check("cuStreamDestroy", there.gpu.driver.stream_destroy(stream))?;
    }
    here.gpu.enter()
}

fn finish_each(mut scenes: [Scene; 2]) -> Told {
    let mut wrong = 0;
    for scene in &mut scenes {
        scene.gpu.enter()?;
        super::say("phase", u64::try_from(scene.phase()).unwrap_or(99));
        wrong += scene.finish()?;
        let report = scene.ft.as_ref().and_then(harness::ft::Ft::report).unwrap_or_default();
        let plans = report["plans"].as_array().map_or(0, Vec::len);
        super::say("plans", plans as u64);
    }
    for device in 0..2 {
        super::say(&format!("held by GPU {device}"), held(&scenes[0], device));
    }
    Ok(wrong)
}

/// All that the process holds of a GPU, as the report counts it.
fn held(scene: &Scene, device: u64) -> u64 {
    let report = scene.ft.as_ref().and_then(harness::ft::Ft::report).unwrap_or_default();
    let all = report["memory"]["process"].as_array().cloned().unwrap_or_default();
    let mine = all.iter().find(|of| of["device"].as_u64() == Some(device));
    mine.and_then(|of| of["held_bytes"].as_u64()).unwrap_or(0)
}

/// The even weights lie on GPU 0, the odd ones on GPU 1, and one model has all.
fn a_model_over_two_gpus() -> Told {
    let mut first = Gpu::open()?;
    first.load_kernels()?;
    let other = second()?;
    let mut there = Vec::new();
    for seed in 1..=COUNT {
        let address = other.alloc(BYTES as usize)?;
        other.upload(address, &harness::pattern::filled(100 + seed, BYTES as usize))?;
        there.push(Weight { address, bytes: BYTES, seed: 100 + seed, flags: MAY_STREAM });
    }
    first.enter()?;
    let mut scene = Scene::on(first, COUNT, PAGES, MAY_STREAM)?;
    scene.drop_name();
    let here = scene.weights.clone();
    scene.weights = here.iter().zip(&there).flat_map(|(&a, &b)| [a, b]).collect();
    scene.name();
    other.enter()?;
    let (stream, counter) = (other.stream()?, other.alloc(8)?);
    other.upload(counter, &[0; 8])?;
    let pass = |scene: &Scene| {
        scene.pass_with(|scene, at| {
            let weight = scene.weights[at];
            if at % 2 == 0 {
                scene.gpu.enter()?;
                return scene.check(scene.main, at);
            }
            other.enter()?;
            other.launch("check", stream, &[weight.address, BYTES, weight.seed, counter].map(Word))
        })
    };
    for _ in 0..8 {
        pass(&scene)?;
    }
    other.enter()?;
    other.synchronize()?;
    let mut wrong = other.word(counter)?;
    for weight in &there {
        let data = other.download(weight.address, BYTES as usize)?;
        wrong += harness::pattern::mismatches(weight.seed, &data) as u64;
    }
    scene.gpu.enter()?;
    super::say("phase", u64::try_from(scene.phase()).unwrap_or(99));
    scene.weights = here;
    Ok(wrong + scene.finish()?)
}

/// GPU 1 may read and write the memory of GPU 0 from now on.
fn reach(scene: &Scene, other: &Gpu) -> Done {
    other.enter()?;
    super::pages::mark("reach");
    check("cuCtxEnablePeerAccess", other.driver.enable_peer(scene.gpu.context, 0))?;
    scene.gpu.enter()
}

/// What one GPU reads of another one's memory, and the wrong words it found.
struct Reader<'a> {
    gpu: &'a Gpu,
    stream: u64,
    counter: u64,
}

impl<'a> Reader<'a> {
    fn on(gpu: &'a Gpu) -> Result<Self, Failure> {
        gpu.enter()?;
        let (stream, counter) = (gpu.stream()?, gpu.alloc(8)?);
        gpu.upload(counter, &[0; 8])?;
        Ok(Self { gpu, stream, counter })
    }

    /// Reads a range there; the context of the reading GPU is current afterwards.
    fn read(&self, address: u64, bytes: u64, seed: u64, microseconds: u64) -> Done {
        self.gpu.enter()?;
        let arguments = [address, bytes, seed, self.counter, microseconds];
        self.gpu.launch("check_slow", self.stream, &arguments.map(Word))
    }

    fn wrong(&self) -> Told {
        self.gpu.enter()?;
        self.gpu.synchronize()?;
        self.gpu.word(self.counter)
    }
}

/// Memory from before and from after the moment at which GPU 1 was let in, weights that stream among it.
fn another_gpu_reads_weights() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let other = second()?;
    reach(&scene, &other)?;
    let later = scene.gpu.alloc(BYTES as usize)?;
    scene.launch("fill", &[later, BYTES, 77])?;
    scene.pass()?;
    scene.synchronize()?;
    let reader = Reader::on(&other)?;
    reader.read(later, BYTES, 77, 100)?;
    for at in [1, 4] {
        let weight = scene.weights[at];
        reader.read(weight.address, weight.bytes, weight.seed, 100)?;
    }
    let wrong = reader.wrong()?;
    scene.gpu.enter()?;
    scene.pass()?;
    scene.pass()?;
    Ok(wrong + scene.finish()?)
}

/// The switch-over comes while a kernel of GPU 1 still reads one of the weights.
fn another_gpu_reads_while_learning() -> Told {
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    let other = second()?;
    reach(&scene, &other)?;
    let reader = Reader::on(&other)?;
    scene.gpu.enter()?;
    scene.pass()?;
    scene.synchronize()?;
    for weight in &scene.weights {
        reader.read(weight.address, weight.bytes, weight.seed, 200_000)?;
    }
    scene.gpu.enter()?;
    scene.learn()?;
    scene.pass()?;
    let wrong = reader.wrong()?;
    scene.gpu.enter()?;
    Ok(wrong + scene.finish()?)
}

/// Weights that a GPU may only read, as the driver says.
fn only_readable(scene: &Scene, device: i32) -> Result<u64, Failure> {
    let (mut count, mut location) = (0, harness::gpu::device_memory().location);
    location.id = device;
    for weight in &scene.weights {
        let mut flags = 0;
        // The last page: the first ones may stay in GPU memory.
        let at = weight.address + weight.bytes - PAGE as u64;
        check("cuMemGetAccess", scene.gpu.driver.get_access(&mut flags, &location, at))?;
        count += u64::from(flags == 1);
    }
    Ok(count)
}

/// Check mode has write-protected weights when GPU 1 is let in.
fn another_gpu_reaches_protected_weights() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    for _ in 0..4 {
        scene.pass()?;
        scene.synchronize()?;
    }
    super::say("protected before", only_readable(&scene, 0)?);
    let other = second()?;
    reach(&scene, &other)?;
    super::say("protected after", only_readable(&scene, 0)?);
    super::say("protected from the other", only_readable(&scene, 1)?);
    scene.pass()?;
    scene.finish()
}

fn freed_while_another_gpu_reads() -> Told {
    let mut scene = Scene::learnt(COUNT, PAGES)?;
    let other = second()?;
    reach(&scene, &other)?;
    let reader = Reader::on(&other)?;
    scene.gpu.enter()?;
    let shared = scene.gpu.alloc(BYTES as usize)?;
    scene.launch("fill", &[shared, BYTES, 31])?;
    scene.synchronize()?;
    reader.read(shared, BYTES, 31, 100_000)?;
    scene.gpu.enter()?;
    scene.gpu.free(shared)?;
    let wrong = reader.wrong()?;
    scene.gpu.enter()?;
    scene.learn()?;
    Ok(wrong + scene.finish()?)
}

/// Copies that name no context, as runtimes make them where peers are enabled, or memory is the driver's own.
fn copies_between_gpus(reaching: bool) -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let other = second()?;
    if reaching {
        reach(&scene, &other)?;
        check("cuCtxEnablePeerAccess", scene.gpu.driver.enable_peer(other.context, 0))?;
    }
    other.enter()?;
    let (stream, there) = (other.stream()?, other.alloc(BYTES as usize)?);
    let small = other.alloc(4096)?;
    let mut wrong = 0;
    for (round, at) in [0, 3, 5].into_iter().enumerate() {
        let weight = scene.weights[at];
        scene.gpu.enter()?;
        let driver = &scene.gpu.driver;
        let copied = match round {
            0 => driver.copy_d2d_async(there, weight.address, BYTES as usize, scene.main),
            1 => driver.copy_async(there, weight.address, BYTES as usize, scene.main),
            _ => driver.copy(there, weight.address, BYTES as usize),
        };
        check("a copy to the other GPU", copied)?;
        check("a copy of a few bytes", driver.copy_d2d_async(small, weight.address, 4096, scene.main))?;
        scene.synchronize()?;
        scene.gpu.synchronize()?;
        other.enter()?;
        wrong += harness::pattern::mismatches(weight.seed, &other.download(there, BYTES as usize)?) as u64;
        wrong += harness::pattern::mismatches(weight.seed, &other.download(small, 4096)?) as u64;
        // And back, asked for by the other one.
        let driver = &other.driver;
        check("a copy back", driver.copy_d2d_async(weight.address, there, BYTES as usize, stream))?;
        other.synchronize()?;
        scene.gpu.enter()?;
        scene.pass()?;
    }
    Ok(wrong + scene.finish()?)
}
