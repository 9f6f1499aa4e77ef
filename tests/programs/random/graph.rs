//! A graph of reads, captured from the main stream and launched while what it verifies is still true.

use super::Stage;
use super::book::Part;
use super::dice::Dice;
use super::model::Model;
use harness::driver::{Failure, check};
use harness::gpu::Argument::Word;

const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

pub(crate) struct Captured {
    executable: u64,
    /// What it verifies.
    parts: Vec<Part>,
}

impl Model {
    /// Captures reads of a few weights, and launches them.
    pub(crate) fn capture(&mut self, stage: &Stage, dice: &mut Dice) -> Result<(), Failure> {
        self.drop_graph(stage)?;
        self.join(stage)?;
        let driver = &stage.gpu.driver;
        let main = self.place.main;
        let chosen: Vec<usize> = (0..2).map(|_| dice.index(self.weights.len())).collect();
        let all = chosen.into_iter().flat_map(|at| self.weights[at].parts.clone());
        let parts: Vec<Part> = all.filter(|part| part.content.seed().is_some()).collect();
        let mode = if stage.crowded { RELAXED } else { GLOBAL };
        check("cuStreamBeginCapture", driver.begin_capture(main, mode))?;
        for part in &parts {
            let seed = part.content.seed().unwrap_or(0);
            let arguments = [part.address, part.bytes, seed, stage.counter];
            stage.gpu.launch("check", main, &arguments.map(Word))?;
        }
        let (mut graph, mut executable) = (0, 0);
        check("cuStreamEndCapture", driver.end_capture(main, &mut graph))?;
        check("cuGraphInstantiate", driver.graph_instantiate(&mut executable, graph, 0))?;
        check("cuGraphDestroy", driver.graph_destroy(graph))?;
        self.graph = Some(Captured { executable, parts });
        self.launch_graph(stage)
    }

    /// Launches the graph if nothing it verifies has changed.
    pub(crate) fn launch_graph(&mut self, stage: &Stage) -> Result<(), Failure> {
        let Some(graph) = &self.graph else { return Ok(()) };
        let now = |part: &Part| {
            let all = self.weights.iter().flat_map(|weight| &weight.parts);
            all.filter(|other| other.address == part.address && other.bytes == part.bytes)
                .any(|other| other.content == part.content)
        };
        if graph.parts.iter().all(now) {
            check("cuGraphLaunch", stage.gpu.driver.graph_launch(graph.executable, self.place.main))?;
        }
        Ok(())
    }

    pub(crate) fn drop_graph(&mut self, stage: &Stage) -> Result<(), Failure> {
        if let Some(graph) = self.graph.take() {
            self.synchronize(stage)?;
            check("cuGraphExecDestroy", stage.gpu.driver.executable_destroy(graph.executable))?;
        }
        Ok(())
    }
}
