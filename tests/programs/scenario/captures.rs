//! Stories of graphs: captured before, while and after weights are learnt, and while pointers are read.

use super::scene::{INDIRECT, MAY_STREAM, Scene};
use super::{Told, say};
use harness::driver::check;

const COUNT: u64 = 6;
const PAGES: u64 = 2;

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "a graph captured after the switch" => a_graph(When::Switched),
        "a graph captured while learning" => a_graph(When::Named),
        "a graph captured before naming" => a_graph(When::Unnamed),
        "a graph captured while pointers are held" => a_graph_while_pointers_are_held(),
        "a stream joins a capture amid a use" => a_stream_joins_a_capture(Use::BeforeIt),
        "a stream joins the capture in which it read" => a_stream_joins_a_capture(Use::InIt),
        "a weight freed beside a capture" => a_free_beside_a_capture(),
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
    let mut executable = None;
    scene.pass_with(|scene, at| {
        let weight = scene.weights[at];
        scene.launch("prepare_pointers", &[scene.array, weight.address, 0, 0, 0, 1])?;
        scene.check(scene.main, at)?;
        if at == 2 && executable.is_none() {
            executable = Some(scene.captured((scene.main, 0), || scene.check(scene.main, at))?);
        }
        Ok(())
    })?;
    for _ in 0..2 {
        let executable = executable.unwrap_or_default();
        check("cuGraphLaunch", scene.gpu.driver.graph_launch(executable, scene.main))?;
        scene.pass()?;
    }
    scene.finish()
}

/// When a stream reads a weight that then joins a capture.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    BeforeIt,
    InIt,
}

/// While the capture goes on, a stream outside of it reads the next weight: its copy has to wait for a mark on the stream that has joined.
fn a_stream_joins_a_capture(when: Use) -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let (outside, driver) = (scene.gpu.stream()?, &scene.gpu.driver);
    // One launch fewer than the time before: what marks its end is still to come.
    let reads =
        |scene: &Scene, at: usize, launches| (0..launches).try_for_each(|_| scene.check(scene.other, at));
    let amid = |scene: &Scene, at: usize, launches: u32| {
        if at % 2 == 1 {
            return Ok(());
        }
        if when == Use::BeforeIt {
            reads(scene, at, launches)?;
        }
        let mut graph = 0;
        check("cuStreamBeginCapture", driver.begin_capture(scene.main, 2))?;
        if when == Use::InIt {
            reads(scene, at, launches)?;
        }
        scene.gpu.record(scene.event, scene.main)?;
        scene.gpu.wait(scene.other, scene.event)?;
        scene.check(outside, at + 1)?;
        scene.gpu.record(scene.event, scene.other)?;
        scene.gpu.wait(scene.main, scene.event)?;
        check("cuStreamEndCapture", driver.end_capture(scene.main, &mut graph))?;
        scene.check(outside, at + 1)
    };
    for launches in [3, 2, 3, 2] {
        scene.pass_with(|scene, at| amid(scene, at, launches))?;
    }
    check("cuStreamSynchronize", driver.stream_synchronize(outside))?;
    scene.finish()
}

/// Capturing in relaxed mode the program may free; the weight goes when the capture has ended.
fn a_free_beside_a_capture() -> Told {
    let mut scene = Scene::learnt(COUNT, PAGES)?;
    scene.pass()?;
    scene.synchronize()?;
    let freed = scene.weights.pop().map_or(0, |weight| weight.address);
    let free = || u64::from(scene.gpu.driver.mem_free(freed));
    say("streamed before", scene.counted("streamed_units"));
    let mut graph = 0;
    check("cuStreamBeginCapture", scene.gpu.driver.begin_capture(scene.other, 2))?;
    say("freed", free());
    say("freed twice", free());
    scene.check(scene.other, 1)?;
    say("streamed in it", scene.counted("streamed_units"));
    check("cuStreamEndCapture", scene.gpu.driver.end_capture(scene.other, &mut graph))?;
    say("freed again", free());
    say("streamed after it", scene.counted("streamed_units"));
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
    let executable = scene.captured((scene.main, 0), || {
        scene.check(scene.main, 1)?;
        scene.check(scene.main, 4)
    })?;
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
