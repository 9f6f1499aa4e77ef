//! A saved profile as what a question starts from: which models, which input shape, which GPU and link. The
//! file's types and checks are core's ([`flextensor_core::saved`]); the file itself is read by the caller.

use flextensor_core::plan::Forecast;
use flextensor_core::saved::{Saved, SavedGpu, SavedModel, shape_of};
use flextensor_core::units::ModelId;
use serde::Serialize;

use crate::error::WhatIfError;
use crate::question::Question;

/// A profile that has been read and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    file: String,
    saved: Saved,
}

/// Which part of a profile is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Choice {
    /// The GPU by its number in the run; none = the first of the file.
    pub device: Option<i32>,
    /// The input shape by its place in the file, from 1; none = the one that the saved plan serves.
    pub shape: Option<usize>,
}

/// One input shape of a profile.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Shape {
    /// The model's name.
    pub model: String,
    /// Its place in the file, from 1.
    pub number: usize,
    /// Its signature in 16 hexadecimal digits.
    pub signature: String,
    /// Passes that were seen.
    pub passes: u64,
    /// Milliseconds of a pass with everything resident.
    pub resident_ms: f64,
    /// Whether this is the one that is asked about.
    pub chosen: bool,
    /// What our plan, which serves all shapes, is expected to take for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_ms: Option<f64>,
    /// The least milliseconds that any plan could take for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_ms: Option<f64>,
    #[serde(skip)]
    key: (ModelId, u64),
}

impl Shape {
    /// The shape with what a plan expects of it.
    #[must_use]
    pub fn with(mut self, forecasts: &[Forecast]) -> Self {
        let of = forecasts.iter().find(|forecast| forecast.shapes.contains(&self.key));
        self.predicted_ms = of.map(|forecast| forecast.predicted_ms);
        self.bound_ms = of.map(|forecast| forecast.bound_ms);
        self
    }
}

impl Profile {
    /// Reads the text of a profile; `file` is only named in errors.
    ///
    /// # Errors
    /// [`WhatIfError::Profile`].
    pub fn read(file: &str, text: &str) -> Result<Self, WhatIfError> {
        let saved = flextensor_core::saved::parse(file, text)?;
        Ok(Profile { file: file.to_owned(), saved })
    }

    /// The question about this profile as it was saved: its link, and the budget that its plan was made for.
    ///
    /// # Errors
    /// [`WhatIfError::NoDevice`] and [`WhatIfError::NoShape`] when the choice is not in the file;
    /// [`WhatIfError::Empty`] when there is nothing to plan.
    pub fn question(&self, choice: Choice) -> Result<Question, WhatIfError> {
        let device = self.device(choice)?;
        let place = choice.shape.unwrap_or(1);
        let most = self.models(device).map(|model| model.passes.len()).max().unwrap_or(1);
        if place == 0 || place > most {
            return Err(WhatIfError::NoShape { given: place, most });
        }
        let mut saved = self.saved.clone();
        for model in saved.flextensor.iter_mut().flat_map(|ours| &mut ours.models) {
            // A model that has fewer shapes keeps the one that its plan serves.
            if place <= model.passes.len() {
                model.passes.swap(0, place - 1);
            }
        }
        let budget = self.models(device).find_map(|model| model.plan.as_ref()?.budget_bytes);
        let request = saved.request(device, budget, self.saved.link());
        if request.units.is_empty() || request.passes.iter().all(|pass| pass.uses.is_empty()) {
            return Err(WhatIfError::Empty { file: self.file.clone() });
        }
        let gpu = self.gpu(device);
        Ok(Question {
            request,
            title: self.title(device),
            gpu: gpu.map(|gpu| gpu.uuid.clone()),
            gpu_bytes: gpu.map(|gpu| gpu.total_bytes).filter(|bytes| *bytes > 0),
            link_words: link_words(gpu),
            shapes: self.shapes(device, place),
        })
    }

    fn device(&self, choice: Choice) -> Result<i32, WhatIfError> {
        let models = self.saved.flextensor.iter().flat_map(|ours| &ours.models);
        let mut known: Vec<i32> = models.map(|model| model.device).collect();
        known.sort_unstable();
        known.dedup();
        let first = known.first().copied().unwrap_or(0);
        match choice.device {
            Some(given) if given != first && !known.contains(&given) => {
                let known: Vec<_> = known.iter().map(ToString::to_string).collect();
                let known = if known.is_empty() { "0".to_owned() } else { known.join(", ") };
                Err(WhatIfError::NoDevice { given, known })
            }
            given => Ok(given.unwrap_or(first)),
        }
    }

    fn models(&self, device: i32) -> impl Iterator<Item = &SavedModel> {
        let models = self.saved.flextensor.iter().flat_map(|ours| &ours.models);
        models.filter(move |model| model.device == device)
    }

    fn gpu(&self, device: i32) -> Option<&SavedGpu> {
        self.saved.flextensor.as_ref()?.gpus.iter().find(|gpu| gpu.device == device)
    }

    /// The names of the models; a file without our additions knows none.
    fn title(&self, device: i32) -> String {
        let names: Vec<_> = self.models(device).map(|model| model.name.as_str()).collect();
        if names.is_empty() { "model".into() } else { names.join(", ") }
    }

    fn shapes(&self, device: i32, place: usize) -> Vec<Shape> {
        let mut shapes = Vec::new();
        let models = self.saved.flextensor.iter().flat_map(|ours| &ours.models);
        // Models are numbered as in the request: from 1, those of other GPUs included.
        for (id, model) in (1..).map(ModelId).zip(models).filter(|(_, model)| model.device == device) {
            let chosen = if place <= model.passes.len() { place } else { 1 };
            shapes.extend((1..).zip(&model.passes).map(|(number, pass)| Shape {
                model: model.name.clone(),
                number,
                signature: pass.shape.clone(),
                passes: pass.passes,
                resident_ms: pass.resident_ms,
                chosen: number == chosen,
                predicted_ms: None,
                bound_ms: None,
                key: (id, shape_of(&pass.shape).unwrap_or(0)),
            }));
        }
        shapes
    }
}

/// Where the speed of the link comes from.
fn link_words(gpu: Option<&SavedGpu>) -> String {
    match gpu {
        Some(gpu) if !gpu.idle.is_empty() && gpu.link.generation > 0 => {
            format!("measured, PCIe {} x{}", gpu.link.generation, gpu.link.width)
        }
        Some(gpu) if !gpu.idle.is_empty() => "measured".into(),
        _ => "assumed: the profile has no measurement".into(),
    }
}
