//! The stage of all stories: a device, a model of weights that are patterns, one owner for each, and passes over them.

use super::{Told, say};
use harness::driver::{Failure, check};
use harness::ft::Ft;
use harness::gpu::Argument::Word;
use harness::gpu::{Gpu, PAGE};

pub(crate) type Done = Result<(), Failure>;

const OWNERS: u32 = 1;
const HELD_OWNERS: u32 = 4;
pub(crate) const MAY_STREAM: u32 = 1;
pub(crate) const INDIRECT: u32 = 2;

/// One weight; `seed` is what it holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) seed: u64,
    pub(crate) flags: u32,
}

pub(crate) struct Scene {
    pub(crate) gpu: Gpu,
    pub(crate) ft: Option<Ft>,
    pub(crate) model: u64,
    pub(crate) weights: Vec<Weight>,
    pub(crate) main: u64,
    pub(crate) other: u64,
    pub(crate) event: u64,
    pub(crate) counter: u64,
    /// Device memory for a few pointers.
    pub(crate) array: u64,
}

impl Scene {
    /// `count` weights of `pages` pages, learnt.
    pub(crate) fn learnt(count: u64, pages: u64) -> Result<Self, Failure> {
        let mut scene = Self::set(count, pages, MAY_STREAM)?;
        scene.learn()?;
        Ok(scene)
    }

    /// `count` weights of `pages` pages, named.
    pub(crate) fn set(count: u64, pages: u64, flags: u32) -> Result<Self, Failure> {
        let mut gpu = Gpu::open()?;
        gpu.load_kernels()?;
        Self::on(gpu, count, pages, flags)
    }

    /// The same on a device that is open already.
    pub(crate) fn on(gpu: Gpu, count: u64, pages: u64, flags: u32) -> Result<Self, Failure> {
        let bytes = pages * PAGE as u64;
        let mut weights = Vec::new();
        for seed in 1..=count {
            let address = gpu.alloc(bytes as usize)?;
            weights.push(Weight { address, bytes, seed, flags });
        }
        Self::of(gpu, weights)
    }

    /// These weights, wherever they lie, filled and named.
    pub(crate) fn of(gpu: Gpu, weights: Vec<Weight>) -> Result<Self, Failure> {
        let (main, other, event) = (gpu.stream()?, gpu.stream()?, gpu.event()?);
        let (counter, array) = (gpu.alloc(8)?, gpu.alloc(64)?);
        gpu.upload(counter, &[0; 8])?;
        let mut scene = Self { gpu, ft: Ft::find(), model: 0, weights, main, other, event, counter, array };
        for weight in scene.weights.clone() {
            scene.launch("fill", &[weight.address, weight.bytes, weight.seed])?;
        }
        scene.synchronize()?;
        scene.name();
        Ok(scene)
    }

    pub(crate) fn name(&mut self) {
        self.name_after(|_, _| {});
    }

    /// `first` is done before anything is named of the model.
    pub(crate) fn name_after(&mut self, first: impl FnOnce(&Ft, u64)) {
        let Some(ft) = &self.ft else { return };
        self.model = ft.model_begin("scene");
        first(ft, self.model);
        for (owner, weight) in (0..).zip(&self.weights) {
            ft.model_owner(self.model, owner, &format!("layers.{owner}"), "Linear", owner as i32);
            let name = format!("layers.{owner}.weight");
            ft.model_weight(self.model, &name, weight.address, weight.bytes, owner, weight.flags);
        }
        ft.model_end(self.model);
    }

    pub(crate) fn drop_name(&self) {
        if let Some(ft) = &self.ft {
            ft.model_drop(self.model);
        }
    }

    pub(crate) fn phase(&self) -> i32 {
        self.ft.as_ref().map_or(-2, Ft::phase)
    }

    /// Passes until INFERENCE; a dozen at most.
    pub(crate) fn learn(&mut self) -> Done {
        self.learn_by(Self::pass)
    }

    /// The same with passes of this kind.
    pub(crate) fn learn_by(&mut self, pass: impl Fn(&Self) -> Done) -> Done {
        let mut passes = 0;
        for _ in 0..12 {
            pass(self)?;
            passes += 1;
            if self.phase() == 3 || self.phase() < 0 {
                break;
            }
        }
        self.synchronize()?;
        say("passes", passes);
        say("phase", u64::try_from(self.phase()).unwrap_or(99));
        Ok(())
    }

    /// A pass in which every owner checks its weight.
    pub(crate) fn pass(&self) -> Done {
        self.pass_with(|scene, at| scene.check(scene.main, at))
    }

    /// A pass in which `forward` is what each owner does.
    pub(crate) fn pass_with(&self, mut forward: impl FnMut(&Self, usize) -> Done) -> Done {
        self.begin();
        for at in 0..self.weights.len() {
            self.owner(at, || forward(self, at))?;
        }
        self.end();
        Ok(())
    }

    pub(crate) fn begin(&self) {
        self.begin_shape(1);
    }

    pub(crate) fn begin_shape(&self, shape: u64) {
        if let Some(ft) = &self.ft {
            ft.pass_begin(self.model, shape);
        }
    }

    pub(crate) fn end(&self) {
        if let Some(ft) = &self.ft {
            ft.pass_end(self.model);
        }
    }

    /// What an owner does, between its events.
    pub(crate) fn owner(&self, at: usize, forward: impl FnOnce() -> Done) -> Done {
        let indirect = self.weights[at].flags & INDIRECT != 0;
        let wanted = OWNERS | if indirect { HELD_OWNERS } else { 0 };
        let ft = self.ft.as_ref().filter(|ft| ft.wants(self.model) & wanted != 0);
        if let Some(ft) = ft {
            ft.owner_enter(self.model, at as u32);
        }
        let done = forward();
        if let Some(ft) = ft {
            ft.owner_exit(self.model, at as u32);
        }
        done
    }

    pub(crate) fn check(&self, stream: u64, at: usize) -> Done {
        let Weight { address, bytes, seed, .. } = self.weights[at];
        self.gpu.launch("check", stream, &[address, bytes, seed, self.counter].map(Word))
    }

    /// Runs `launches` while the stream captures in this mode. Returns the graph that came of it, to be launched: a capture that did not survive is an error.
    pub(crate) fn captured(
        &self,
        (stream, mode): (u64, u32),
        launches: impl FnOnce() -> Done,
    ) -> Result<u64, Failure> {
        let driver = &self.gpu.driver;
        let (mut graph, mut executable) = (0, 0);
        check("cuStreamBeginCapture", driver.begin_capture(stream, mode))?;
        launches()?;
        check("cuStreamEndCapture", driver.end_capture(stream, &mut graph))?;
        check("cuGraphInstantiate", driver.graph_instantiate(&mut executable, graph, 0))?;
        Ok(executable)
    }

    /// A check that takes its time, on the other stream, behind what the main one carries.
    pub(crate) fn check_slowly_elsewhere(&self, at: usize, microseconds: u64) -> Done {
        let Weight { address, bytes, seed, .. } = self.weights[at];
        self.gpu.record(self.event, self.main)?;
        self.gpu.wait(self.other, self.event)?;
        let arguments = [address, bytes, seed, self.counter, microseconds];
        self.gpu.launch("check_slow", self.other, &arguments.map(Word))
    }

    /// The main stream goes on behind the other one.
    pub(crate) fn join(&self) -> Done {
        self.gpu.record(self.event, self.other)?;
        self.gpu.wait(self.main, self.event)
    }

    /// A launch of 64-bit arguments on the main stream.
    pub(crate) fn launch(&self, kernel: &'static str, arguments: &[u64]) -> Done {
        let arguments: Vec<_> = arguments.iter().map(|&word| Word(word)).collect();
        self.gpu.launch(kernel, self.main, &arguments)
    }

    pub(crate) fn synchronize(&self) -> Done {
        for stream in [self.main, self.other] {
            check("cuStreamSynchronize", self.gpu.driver.stream_synchronize(stream))?;
        }
        Ok(())
    }

    /// Wrong words that kernels found, and that the host finds in all weights now.
    pub(crate) fn finish(&self) -> Told {
        self.synchronize()?;
        let mut wrong = 0;
        for weight in &self.weights {
            let data = self.gpu.download(weight.address, weight.bytes as usize)?;
            wrong += harness::pattern::mismatches(weight.seed, &data) as u64;
        }
        self.say_counters();
        Ok(wrong + self.gpu.word(self.counter)?)
    }

    /// One of the ring's counters.
    pub(crate) fn counted(&self, key: &str) -> u64 {
        let report = self.ft.as_ref().and_then(Ft::report).unwrap_or_default();
        report["counters"][key].as_u64().unwrap_or(0)
    }

    /// Whether nothing is looked at, by the report: 2 where there is none.
    pub(crate) fn quiet(&self) -> u64 {
        let report = self.ft.as_ref().and_then(Ft::report).unwrap_or_default();
        report["quiet"].as_bool().map_or(2, u64::from)
    }

    /// What the ring counted, for tests that want to know that something happened.
    fn say_counters(&self) {
        let Some(report) = self.ft.as_ref().and_then(Ft::report) else { return };
        let counters = [
            "uses",
            "redirects",
            "demand_loads",
            "conflicts",
            "pages_in",
            "pages_back",
            "streamed_units",
            "views",
        ];
        for key in counters {
            say(key, report["counters"][key].as_u64().unwrap_or(0));
        }
        for key in ["weights_gpu_bytes", "ring_bytes", "host_bytes", "pinned_bytes"] {
            say(key, report["memory"][key].as_u64().unwrap_or(0));
        }
        let shapes = report["models"][0]["measured"].as_array().map_or(&[][..], Vec::as_slice);
        let foreseen = shapes.iter().filter(|shape| shape["predicted_ms"].as_f64() > Some(0.0));
        say("shapes with an outlook", foreseen.count() as u64);
    }
}
