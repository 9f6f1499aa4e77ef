//! Stories of what a weight's bytes are: reads in and out of order, slow readers, every kind of write, launches that show several weights.

use super::scene::{INDIRECT, MAY_STREAM, Scene, Weight};
use super::{Told, say};
use harness::driver::{Failure, check};
use harness::gpu::Argument::Struct;
use harness::pattern;

type Done = Result<(), Failure>;
type Writer = fn(&Scene, Weight, u64) -> Done;

const COUNT: u64 = 6;
const PAGES: u64 = 2;

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "reads in order" => reads_in_order(),
        "reads in any order" => reads_in_any_order(),
        "readers on two streams" => readers_on_two_streams(),
        "a reader that begins to write" => a_reader_that_begins_to_write(),
        "memory that is used again" => memory_that_is_used_again(),
        "slow readers elsewhere" => slow_readers_elsewhere(),
        "writes by a kernel" => {
            writes(|scene, weight, seed| scene.launch("write_words", &[weight.address, weight.bytes, seed]))
        }
        "writes that change nothing at first" => writes_of_the_same_at_first(),
        "writes by a copy to the device" => writes(|scene, weight, seed| {
            scene.synchronize()?;
            scene.gpu.upload(weight.address, &pattern::filled(seed, weight.bytes as usize))
        }),
        "writes by an asynchronous copy" => writes(write_from_pinned),
        "writes by a copy on the device" => writes(write_from_device),
        "a fill" => a_fill(),
        "a kernel that adds" => a_kernel_that_adds(),
        "two weights in one launch" => two_in_one_launch(),
        "a stale word" => a_stale_word(0),
        "a stale word amid a weight" => a_stale_word(4096),
        "pointers in an owner" => pointers_in_an_owner(|_, _| Ok(())),
        "pointers in an owner that another thread leaves" => pointers_in_an_owner(|scene, at| {
            std::thread::scope(|scope| {
                scope
                    .spawn(|| scene.owner(at, || Ok(())))
                    .join()
                    .expect("a thread that only enters and leaves")
            })
        }),
        "pointers in an owner of a second model" => pointers_in_a_second_model(),
        "a length that makes no sense" => a_length_that_makes_no_sense(),
        "pointers in an owner while another thread ends learning" => pointers_while_learning_ends(),
        "pointers in owners of passes that are timed whole" => pointers_in_passes_timed_whole(),
        "weights of many pieces" => weights_of_many_pieces(),
        "budget" => budget(),
        "addresses" => addresses(),
        _ => return None,
    })
}

fn reads_in_order() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    for _ in 0..4 {
        scene.pass()?;
    }
    scene.finish()
}

fn reads_in_any_order() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    for at in [5, 0, 3, 3, 1, 5, 4, 2, 0, 5] {
        scene.begin();
        scene.check(scene.main, at)?;
        scene.check(scene.other, (at + 2) % COUNT as usize)?;
        scene.end();
    }
    scene.finish()
}

fn slow_readers_elsewhere() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    for _ in 0..2 {
        scene.pass_with(|scene, at| scene.check_slowly_elsewhere(at, 3000))?;
        scene.join()?;
    }
    scene.finish()
}

/// Each weight is read on both streams, by the second one for longer.
fn readers_on_two_streams() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    for _ in 0..3 {
        scene.pass_with(|scene, at| {
            scene.check(scene.main, at)?;
            scene.check_slowly_elsewhere(at, 2000)
        })?;
    }
    scene.join()?;
    scene.finish()
}

/// In its forwards a kernel adds nothing to a weight until it counts as a reader; then it adds something. The weight is lost with its pages: only a check run says so.
fn a_reader_that_begins_to_write() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let add = |scene: &Scene, more: u64| {
        scene.pass_with(|scene, at| {
            let weight = scene.weights[at];
            scene.launch("scale_inplace", &[weight.address, weight.bytes / 8, if at == 2 { more } else { 0 }])
        })
    };
    for _ in 0..8 {
        add(&scene, 0)?;
        scene.synchronize()?;
        // What was written is looked at beside the program.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    add(&scene, 5)?;
    add(&scene, 0)?;
    say("ended", u64::from(scene.gpu.driver.context_synchronize()));
    Ok(0)
}

/// A weight is let go, and an allocator gives its memory out again, for activations.
fn memory_that_is_used_again() -> Told {
    let mut scene = Scene::learnt(COUNT, PAGES)?;
    let gone = scene.weights[1];
    if let Some(ft) = &scene.ft {
        assert_eq!(ft.weight_private(gone.address), 0);
    }
    for seed in 50..53 {
        scene.launch("fill", &[gone.address, gone.bytes, seed])?;
        scene.weights[1].seed = seed;
        scene.pass_with(|scene, at| if at == 1 { Ok(()) } else { scene.check(scene.main, at) })?;
        scene.check(scene.main, 1)?;
    }
    scene.finish()
}

/// After learning, each weight is changed in turn by a way that was never seen, leaves its pages, and comes back.
fn writes(write: Writer) -> Told {
    let mut scene = Scene::learnt(COUNT, PAGES)?;
    for at in 0..COUNT as usize {
        let seed = 100 + at as u64;
        write(&scene, scene.weights[at], seed)?;
        scene.weights[at].seed = seed;
        scene.pass()?;
    }
    scene.finish()
}

/// Between forwards a kernel writes what is there already, often enough to be taken for a reader; then it writes something else.
fn writes_of_the_same_at_first() -> Told {
    let mut scene = Scene::learnt(COUNT, PAGES)?;
    let write = |scene: &Scene, at: usize, seed: u64| {
        let weight = scene.weights[at];
        scene.launch("write_words", &[weight.address, weight.bytes, seed])
    };
    for _ in 0..3 {
        for at in 0..COUNT as usize {
            write(&scene, at, scene.weights[at].seed)?;
            scene.pass()?;
            scene.synchronize()?;
            // What was written is looked at beside the program.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    for seed in 100..104 {
        for at in 0..COUNT as usize {
            write(&scene, at, seed + at as u64)?;
            scene.weights[at].seed = seed + at as u64;
            scene.pass()?;
        }
    }
    scene.finish()
}

fn write_from_pinned(scene: &Scene, weight: Weight, seed: u64) -> Done {
    let source = scene.gpu.host_alloc(weight.bytes as usize)?;
    scene.gpu.upload(source, &pattern::filled(seed, weight.bytes as usize))?;
    let driver = &scene.gpu.driver;
    check(
        "cuMemcpyHtoDAsync",
        driver.copy_h2d_async(weight.address, source, weight.bytes as usize, scene.main),
    )
}

fn write_from_device(scene: &Scene, weight: Weight, seed: u64) -> Done {
    let bytes = weight.bytes as usize;
    // Below the size of managed allocations, piece by piece.
    let piece = 512 << 10;
    let source = scene.gpu.alloc(piece)?;
    for (at, data) in (0..).step_by(piece).zip(pattern::filled(seed, bytes).chunks(piece)) {
        scene.gpu.upload(source, data)?;
        let code = scene.gpu.driver.copy_d2d_async(weight.address + at, source, piece, scene.main);
        check("cuMemcpyDtoDAsync", code)?;
        scene.synchronize()?;
    }
    Ok(())
}

fn a_fill() -> Told {
    let mut scene = Scene::learnt(COUNT, PAGES)?;
    let weight = scene.weights[1];
    let code = scene.gpu.driver.set_d8_async(weight.address, 7, weight.bytes as usize, scene.main);
    check("cuMemsetD8Async", code)?;
    // Everybody else takes its pages.
    scene.pass_with(|scene, at| if at == 1 { Ok(()) } else { scene.check(scene.main, at) })?;
    scene.synchronize()?;
    let data = scene.gpu.download(weight.address, weight.bytes as usize)?;
    let wrong = data.iter().filter(|byte| **byte != 7).count() as u64;
    scene.weights.remove(1);
    Ok(wrong + scene.finish()?)
}

fn a_kernel_that_adds() -> Told {
    let mut scene = Scene::learnt(COUNT, PAGES)?;
    let weight = scene.weights[2];
    let mut wrong = 0;
    for round in 1..=3 {
        scene.launch("scale_inplace", &[weight.address, weight.bytes / 8, 5])?;
        scene.pass_with(|scene, at| if at == 2 { Ok(()) } else { scene.check(scene.main, at) })?;
        scene.synchronize()?;
        let data = scene.gpu.download(weight.address, weight.bytes as usize)?;
        let right = |index: u64| pattern::mix(weight.seed, index).wrapping_add(5 * round).to_le_bytes();
        wrong +=
            (0..).zip(data.chunks_exact(8)).filter(|(index, word)| **word != right(*index)).count() as u64;
    }
    scene.weights.remove(2);
    Ok(wrong + scene.finish()?)
}

fn two_in_one_launch() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    for (one, other) in [(0, 1), (3, 2), (5, 0), (1, 4)] {
        let (one, other) = (scene.weights[one], scene.weights[other]);
        let arguments =
            [one.address, one.bytes, one.seed, other.address, other.bytes, other.seed, scene.counter];
        scene.launch("check_two", &arguments)?;
        scene.pass()?;
    }
    scene.finish()
}

/// Kernels whose parameters carry the address of another weight in a word that they never follow.
fn a_stale_word(offset: u64) -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    for round in 0..4 {
        scene.pass_with(|scene, at| {
            let weight = scene.weights[at];
            let stale = scene.weights[(at + 2 + round) % COUNT as usize].address + offset;
            let words = vec![stale, weight.address, weight.bytes, weight.seed, scene.counter, stale, 0, 0];
            scene.gpu.launch("check_struct", scene.main, &[Struct(words)])
        })?;
    }
    scene.finish()
}

/// A kernel stores the address, and another one reads through it, without showing it, before the owner returns.
/// `between`: what happens after the launch that shows the weight and before the one that reads it.
fn through_pointers(scene: &Scene, at: usize, between: impl Fn(&Scene, usize) -> Done) -> Done {
    let weight = scene.weights[at];
    scene.launch("prepare_pointers", &[scene.array, weight.address, 0, 0, 0, 1])?;
    between(scene, at)?;
    // Somebody else's weight comes between: it must not take the pages.
    let neighbour = (at + 1) % COUNT as usize;
    scene.check(scene.main, neighbour)?;
    let seeds = Struct(vec![weight.seed, 0, 0, 0]);
    use harness::gpu::Argument::Word;
    let arguments = [Word(scene.array), Word(1), Word(weight.bytes), seeds, Word(scene.counter)];
    scene.gpu.launch("check_indirect", scene.main, &arguments)
}

fn pointers_in_an_owner(between: fn(&Scene, usize) -> Done) -> Told {
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM | INDIRECT)?;
    let forward = |scene: &Scene, at: usize| through_pointers(scene, at, between);
    for _ in 0..8 {
        scene.pass_with(forward)?;
    }
    scene.learn()?;
    scene.pass_with(forward)?;
    scene.finish()
}

/// The weights stream already when a second model names them as read through pointers; both models' passes go on.
fn pointers_in_a_second_model() -> Told {
    let mut scene = Scene::learnt(COUNT, PAGES)?;
    let first = scene.model;
    scene.weights.iter_mut().for_each(|weight| weight.flags |= INDIRECT);
    scene.name();
    let second = scene.model;
    for _ in 0..4 {
        scene.model = second;
        scene.pass_with(|scene, at| through_pointers(scene, at, |_, _| Ok(())))?;
        scene.model = first;
        scene.pass()?;
        scene.pass()?;
    }
    scene.finish()
}

/// A copy and a fill of more bytes than there are addresses are refused, and at once.
fn a_length_that_makes_no_sense() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let (weight, bytes) = (scene.weights[1], usize::MAX - 7);
    let driver = &scene.gpu.driver;
    say("filled", u64::from(driver.set_d8_async(weight.address, 7, bytes, scene.main)));
    say(
        "copied",
        u64::from(driver.copy_d2d_async(weight.address, scene.weights[2].address, bytes, scene.main)),
    );
    scene.finish()
}

/// Physical bytes before the switch-over, after it, and the most there were meanwhile, by the driver's own count.
fn budget() -> Told {
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    let before = device_bytes("device_bytes");
    scene.learn()?;
    say("before", before);
    say("after", device_bytes("device_bytes"));
    say("peak", device_bytes("device_bytes_peak"));
    scene.pass()?;
    scene.finish()
}

/// From here on `SIMCUDA_FAULTS` counts the calls of rules that name this mark.
pub(crate) fn mark(name: &str) {
    let sim = harness::sim::Sim::find().expect("this story needs simcuda");
    sim.set(&format!("mark:{name}"), 1);
}

/// A number that simcuda counts.
#[expect(unsafe_code, reason = "finds a C function at run time")]
pub(crate) fn device_bytes(name: &str) -> u64 {
    let name = std::ffi::CString::new(name).expect("a name has no NUL");
    // SAFETY: the library's name and the function's are C strings; the driver is loaded already.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    // SAFETY: as above.
    let address = unsafe { libc::dlsym(library, c"simcuda_stat".as_ptr()) };
    assert!(!address.is_null(), "this story needs simcuda");
    type Stat = extern "C" fn(*const std::ffi::c_char) -> u64;
    // SAFETY: the export has this signature (docs/simcuda.md).
    let stat: Stat = unsafe { std::mem::transmute(address) };
    stat(name.as_ptr())
}

/// Whatever moves below, the program's addresses, and what the driver says of them, stay.
fn addresses() -> Told {
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    let before = scene.weights.clone();
    let describe = |scene: &Scene| -> Result<Vec<(u64, usize)>, Failure> {
        let range = |weight: &Weight| {
            let (mut base, mut bytes) = (0, 0);
            let inside = weight.address + weight.bytes / 2;
            check("cuMemGetAddressRange", scene.gpu.driver.address_range(&mut base, &mut bytes, inside))?;
            Ok((base, bytes))
        };
        scene.weights.iter().map(range).collect()
    };
    let described = describe(&scene)?;
    scene.learn()?;
    scene.pass()?;
    assert_eq!(describe(&scene)?, described, "what the driver says of the weights changed");
    assert!(before.iter().zip(&described).all(|(weight, range)| weight.address == range.0));
    scene.finish()
}

/// One thread is inside an owner that reads its weight through pointers when another thread's pass is the last one of learning.
/// Each is longer than what is pinned at once where a long registration was refused.
fn weights_of_many_pieces() -> Told {
    let scene = Scene::learnt(2, 40)?;
    scene.pass()?;
    let report = scene.ft.as_ref().and_then(harness::ft::Ft::report).unwrap_or_default();
    for key in ["pinned_bytes", "pageable_bytes", "host_bytes"] {
        say(&format!("{key} of shadows"), report["memory"][key].as_u64().unwrap_or(0));
    }
    let wrong = scene.finish()?;
    scene.drop_name();
    scene.weights.iter().try_for_each(|weight| scene.gpu.free(weight.address))?;
    let report = scene.ft.as_ref().and_then(harness::ft::Ft::report).unwrap_or_default();
    say("pageable at last", report["memory"]["pageable_bytes"].as_u64().unwrap_or(0));
    Ok(wrong)
}

/// Says in how many learning passes somebody wanted to hear of all owners, and of those at least that read through pointers.
fn pointers_in_passes_timed_whole() -> Told {
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM | INDIRECT)?;
    let (mut all, mut held) = (0, 0);
    for _ in 0..5 {
        scene.begin();
        let wanted = scene.ft.as_ref().map_or(0, |ft| ft.wants(scene.model));
        all += u64::from(wanted & 1 != 0);
        held += u64::from(wanted & 5 != 0);
        (0..COUNT as usize).try_for_each(|at| scene.owner(at, || scene.check(scene.main, at)))?;
        scene.end();
    }
    say("passes that tell of all owners", all);
    say("passes that tell of pointers", held);
    scene.learn()?;
    scene.pass()?;
    scene.finish()
}

fn pointers_while_learning_ends() -> Told {
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM | INDIRECT)?;
    let at = 0;
    let weight = scene.weights[at];
    scene.begin();
    scene.owner(at, || {
        scene.launch("prepare_pointers", &[scene.array, weight.address, 0, 0, 0, 1])?;
        std::thread::scope(|scope| {
            let other = || -> Done {
                scene.gpu.enter()?;
                for _ in 0..4 {
                    scene.begin();
                    // The owner whose forward goes on elsewhere is not entered here.
                    for at in 1..COUNT as usize {
                        scene.owner(at, || scene.check(scene.main, at))?;
                    }
                    scene.end();
                }
                scene.synchronize()
            };
            scope.spawn(other).join().expect("a thread that runs passes")
        })?;
        say("phase inside", u64::try_from(scene.phase()).unwrap_or(99));
        let seeds = Struct(vec![weight.seed, 0, 0, 0]);
        use harness::gpu::Argument::Word;
        let arguments = [Word(scene.array), Word(1), Word(weight.bytes), seeds, Word(scene.counter)];
        scene.gpu.launch("check_indirect", scene.main, &arguments)
    })?;
    scene.end();
    scene.synchronize()?;
    say("wrong inside", scene.gpu.word(scene.counter)?);
    scene.learn()?;
    scene.pass()?;
    scene.finish()
}
