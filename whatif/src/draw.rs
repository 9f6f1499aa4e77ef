//! Draws charts and timelines as SVG text. What they show is decided in [`crate::chart`] and
//! [`crate::timeline`]; nothing is written to a file here.

use plotters::chart::SeriesLabelPosition;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use crate::chart::{Chart, Line, Scale, Stroke};
use crate::error::WhatIfError;
use crate::timeline::{BarKind, Timeline};

/// Colours that people with any colour vision tell apart (Okabe and Ito's), for lines that are no limits.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(140, 120, 30),
    RGBColor(90, 60, 150),
];
const GREY: RGBColor = RGBColor(110, 110, 110);
const WAIT: RGBColor = RGBColor(213, 94, 0);

/// Pixels of one chart; charts side by side are as many times as wide.
const CHART: (u32, u32) = (620, 420);
const TIMELINE: (u32, u32) = (1240, 260);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plane<'a, 'b, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, Y>>;

/// The charts side by side, as one SVG.
///
/// # Errors
/// [`WhatIfError::Drawing`] with the drawing library's words.
pub fn charts(charts: &[Chart]) -> Result<String, WhatIfError> {
    let count = charts.len().max(1);
    let size = (CHART.0 * u32::try_from(count).unwrap_or(1), CHART.1);
    svg(size, |area| {
        for (part, chart) in area.split_evenly((1, count)).iter().zip(charts) {
            one_chart(part, chart)?;
        }
        Ok(())
    })
}

/// A timeline as SVG: copies above, computing and waits below.
///
/// # Errors
/// [`WhatIfError::Drawing`] with the drawing library's words.
pub fn timeline(timeline: &Timeline) -> Result<String, WhatIfError> {
    svg(TIMELINE, |area| one_timeline(area, timeline))
}

fn svg(
    size: (u32, u32),
    paint: impl FnOnce(&Area<'_>) -> Result<(), Box<dyn std::error::Error>>,
) -> Result<String, WhatIfError> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE)
            .map_err(Box::from)
            .and_then(|()| paint(&area))
            .and_then(|()| area.present().map_err(Box::from))
            .map_err(|error: Box<dyn std::error::Error>| WhatIfError::Drawing { why: error.to_string() })?;
    }
    Ok(text)
}

fn one_chart(area: &Area<'_>, chart: &Chart) -> Result<(), Box<dyn std::error::Error>> {
    let highest = chart.ranges().1;
    match chart.scale {
        Scale::Even => on_scale(area, chart, 0.0..highest, highest * 0.05),
        Scale::Logarithmic => {
            let least = chart.least_ms();
            on_scale(area, chart, (least..highest).log_scale(), least * 1.15)
        }
    }
}

/// The chart on a scale of milliseconds; texts beside vertical lines stand at the height `low`.
fn on_scale<S>(area: &Area<'_>, chart: &Chart, scale: S, low: f64) -> Result<(), Box<dyn std::error::Error>>
where
    S: AsRangedCoord<Value = f64>,
    S::CoordDescType: ValueFormatter<f64> + 'static,
{
    let (widest, highest) = chart.ranges();
    let (floor, upward, labels) = match chart.scale {
        Scale::Even => (0.0, chart.upward.clone(), 12),
        // Enough for ten labels a decade.
        Scale::Logarithmic => (chart.least_ms(), format!("{}, logarithmic", chart.upward), 30),
    };
    let mut plane = ChartBuilder::on(area)
        .caption(&chart.title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(62)
        .build_cartesian_2d(0.0..widest, scale)?;
    plane
        .configure_mesh()
        .x_desc(&chart.along)
        .y_desc(upward)
        .y_labels(labels)
        .light_line_style(WHITE)
        .bold_line_style(GREY.mix(0.2))
        .axis_desc_style(("sans-serif", 13))
        .label_style(("sans-serif", 12))
        .x_label_formatter(&|x| number(*x))
        .y_label_formatter(&|y| number(*y))
        .draw()?;
    for upright in &chart.uprights {
        let ends = [(upright.at, floor), (upright.at, highest)];
        plane.draw_series(DashedLineSeries::new(ends, 2, 3, GREY.stroke_width(1)))?;
        plane.draw_series([Text::new(
            upright.label.clone(),
            (upright.at + widest * 0.008, low),
            ("sans-serif", 12).into_font().color(&GREY),
        )])?;
    }
    let mut colours = COLOURS.iter().cycle();
    for line in &chart.lines {
        one_line(&mut plane, line, &mut colours)?;
    }
    plane
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(GREY.mix(0.4))
        .label_font(("sans-serif", 12))
        .draw()?;
    Ok(())
}

fn one_line<'a, 'b: 'a, 'c, Y: Ranged<ValueType = f64>>(
    plane: &mut Plane<'a, 'b, Y>,
    line: &Line,
    colours: &mut impl Iterator<Item = &'c RGBColor>,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = line.points.clone();
    let colour = match line.stroke {
        Stroke::Limit | Stroke::Reference => GREY,
        Stroke::Through | Stroke::Marked => *colours.next().unwrap_or(&BLACK),
    };
    let style = colour.stroke_width(2);
    let (dash, gap) = match line.stroke {
        Stroke::Through | Stroke::Marked => (0, 0),
        Stroke::Limit => (8, 5),
        Stroke::Reference => (2, 4),
    };
    let drawn = if dash == 0 {
        plane.draw_series(LineSeries::new(points, style))?
    } else {
        plane.draw_series(DashedLineSeries::new(points, dash, gap, style))?
    };
    // What the legend shows of a line: two pieces, with a gap between them if the line has gaps.
    let piece = match line.stroke {
        Stroke::Through | Stroke::Marked => 9,
        Stroke::Limit => 7,
        Stroke::Reference => 2,
    };
    drawn.label(&line.label).legend(move |place| {
        EmptyElement::at(place)
            + PathElement::new([(0, 0), (piece, 0)], style)
            + PathElement::new([(18 - piece, 0), (18, 0)], style)
    });
    if line.stroke == Stroke::Marked {
        plane.draw_series(line.points.iter().map(|point| Circle::new(*point, 4, colour.filled())))?;
    }
    Ok(())
}

fn one_timeline(area: &Area<'_>, timeline: &Timeline) -> Result<(), Box<dyn std::error::Error>> {
    let mut plane = ChartBuilder::on(area)
        .caption(&timeline.title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(70)
        .build_cartesian_2d(timeline.from_ms..timeline.to_ms, 0.0..2.0)?;
    plane
        .configure_mesh()
        .disable_y_mesh()
        .x_desc("milliseconds from the start of the pass")
        .light_line_style(WHITE)
        .bold_line_style(GREY.mix(0.2))
        .y_labels(0)
        .axis_desc_style(("sans-serif", 13))
        .label_style(("sans-serif", 12))
        .x_label_formatter(&|x| number(*x))
        .draw()?;
    for bar in &timeline.bars {
        let (low, high, colour) = match bar.kind {
            BarKind::Copy => (1.1, 1.8, COLOURS[0].mix(if bar.odd { 0.95 } else { 0.6 })),
            BarKind::Compute => (0.2, 0.9, COLOURS[2].mix(if bar.odd { 0.95 } else { 0.6 })),
            BarKind::Wait => (0.2, 0.9, WAIT.mix(0.9)),
        };
        let corners = [(bar.start_ms, low), (bar.end_ms, high)];
        plane.draw_series([Rectangle::new(corners, colour.filled())])?;
    }
    for (text, height, colour) in
        [("copies", 1.95, COLOURS[0]), ("computing", 1.05, COLOURS[2]), ("waiting", 0.15, WAIT)]
    {
        let place = (timeline.from_ms + (timeline.to_ms - timeline.from_ms) * 0.004, height);
        plane.draw_series([Text::new(text, place, ("sans-serif", 13).into_font().color(&colour))])?;
    }
    if timeline.from_ms < 0.0 {
        plane.draw_series(DashedLineSeries::new([(0.0, 0.0), (0.0, 2.0)], 2, 3, GREY.stroke_width(1)))?;
    }
    Ok(())
}

/// A number on an axis: as few digits as it needs.
fn number(value: f64) -> String {
    let rounded = (value * 1000.0).round() / 1000.0;
    if rounded == 0.0 { "0".into() } else { format!("{rounded}") }
}
