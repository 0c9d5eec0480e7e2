//! Drawing a [`Plot`] with plotters.

use std::error::Error;

use plotters::coord::Shift;
use plotters::coord::ranged1d::Ranged;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::Span;
use super::{Guide, Mark, Plot, Series};

const WIDTH: u32 = 720;
const HEIGHT: u32 = 430;
const TITLE_HEIGHT: i32 = 34;
const LEGEND_ROW: i32 = 20;
const MARGIN: i32 = 12;

/// Stands for the page's text colour until the SVG is finished.
const INK: RGBColor = RGBColor(1, 2, 3);

/// Mid tones that are told apart on white and on black ground, also by most colour-blind readers.
const PALETTE: [RGBColor; 7] = [
    RGBColor(0x2f, 0x7e, 0xd8),
    RGBColor(0xe0, 0x7b, 0x1f),
    RGBColor(0x1f, 0xa1, 0x87),
    RGBColor(0xc9, 0x4f, 0x8b),
    RGBColor(0x8a, 0x6f, 0xd1),
    RGBColor(0x9a, 0x8b, 0x2c),
    RGBColor(0x6f, 0x7f, 0x8f),
];

/// Colours of guides, told apart from data by dashes or shade.
const GUIDE_LINE: RGBColor = RGBColor(0xd0, 0x3b, 0x3b);
const GUIDE_SLOPE: RGBColor = RGBColor(0x8a, 0x94, 0x9e);
const GUIDE_BAND: RGBColor = RGBColor(0xe0, 0xa8, 0x1f);
const WEDGE: RGBColor = RGBColor(0x6f, 0x8f, 0xaf);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'b, SVGBackend<'a>, Cartesian2d<Span, Span>>;
type Drawn = Result<(), Box<dyn Error>>;

fn colour(index: usize) -> RGBColor {
    PALETTE[index % PALETTE.len()]
}

/// The plot as an SVG element in `currentColor`.
pub(super) fn svg(plot: &Plot) -> String {
    let mut text = String::new();
    let drawn = {
        let root = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
        draw(plot, &root).and_then(|()| root.present().map_err(Into::into))
    };
    if drawn.is_err() {
        // A backend that writes to a string has no error of its own; should plotters refuse a plot, the page
        // still stands and says so.
        return format!(
            "<svg width=\"{WIDTH}\" height=\"40\"><text y=\"24\" fill=\"currentColor\">not drawn</text></svg>"
        );
    }
    let label = crate::report::escape::escape(&plot.title);
    text.replace("#010203", "currentColor").replacen(
        "<svg ",
        &format!("<svg role=\"img\" aria-label=\"{label}\" font-family=\"sans-serif\" "),
        1,
    )
}

fn ink(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

fn draw(plot: &Plot, root: &Area<'_>) -> Drawn {
    root.draw(&Text::new(
        clean(&plot.title),
        (MARGIN, MARGIN),
        ink(17).pos(Pos::new(HPos::Left, VPos::Top)),
    ))?;
    let legend = draw_legend(plot, root)?;
    let (_, chart_area) = root.split_vertically(TITLE_HEIGHT + legend);
    let xs = || plot.series.iter().flat_map(|s| &s.points);
    let edges = || plot.series.iter().flat_map(bar_edges);
    let x = xs().map(|p| p.0).chain(edges()).chain(guide_xs(&plot.guides));
    let x = Span::of(x, plot.x.scale);
    let y = Span::of(xs().map(|p| p.1).chain(guide_ys(&plot.guides)), plot.y.scale);
    let (Some(x), Some(y), true) = (x, y, xs().any(|p| p.0.is_finite() && p.1.is_finite())) else {
        let centre = (WIDTH as i32 / 2, HEIGHT as i32 / 2 - TITLE_HEIGHT);
        chart_area.draw(&Text::new(
            "no data",
            centre,
            ink(16).pos(Pos::new(HPos::Center, VPos::Center)),
        ))?;
        return Ok(());
    };
    let labels = y
        .ticks()
        .iter()
        .map(|t| crate::report::number::short(*t).len())
        .max()
        .unwrap_or(0);
    let mut chart = ChartBuilder::on(&chart_area)
        .margin(MARGIN)
        .margin_right(MARGIN * 2)
        .x_label_area_size(46)
        .y_label_area_size(34 + 7 * labels as i32)
        .build_cartesian_2d(x.clone(), y.clone())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK.mix(0.13))
        .axis_style(INK.mix(0.6))
        .label_style(ink(13))
        .axis_desc_style(ink(14))
        .x_desc(clean(&plot.x.title()))
        .y_desc(clean(&plot.y.title()))
        .draw()?;
    for guide in &plot.guides {
        draw_guide(&mut chart, guide, &x, &y)?;
    }
    for (i, series) in plot.series.iter().enumerate() {
        draw_series(&mut chart, series, colour(i), &x, &y)?;
    }
    Ok(())
}

/// Half the distance of the two closest points of a series of bars; half a unit when there is but one.
fn half_bar(series: &Series) -> f64 {
    let finite = series.points.iter().map(|p| p.0).filter(|x| x.abs() <= 1e280);
    let mut xs: Vec<f64> = finite.collect();
    xs.sort_by(f64::total_cmp);
    let gaps = xs.windows(2).map(|w| w[1] - w[0]).filter(|&gap| gap > 0.0);
    let closest = gaps.fold(f64::INFINITY, f64::min);
    if closest.is_finite() { closest / 2.0 } else { 0.5 }
}

/// Where the bars of a series begin and end; nothing for other marks.
fn bar_edges(series: &Series) -> Vec<f64> {
    if series.mark != Mark::Bars {
        return Vec::new();
    }
    let half = half_bar(series);
    series
        .points
        .iter()
        .flat_map(|p| [p.0 - half, p.0 + half])
        .collect()
}

/// Guides that name a place on the x axis widen it, so that a target is seen even when all data lie below.
fn guide_xs(guides: &[Guide]) -> impl Iterator<Item = f64> + '_ {
    guides.iter().flat_map(|g| match *g {
        Guide::Vertical { x, .. } => vec![x],
        Guide::Band { from, to, .. } => vec![from, to],
        _ => Vec::new(),
    })
}

fn guide_ys(guides: &[Guide]) -> impl Iterator<Item = f64> + '_ {
    guides.iter().filter_map(|g| match *g {
        Guide::Horizontal { y, .. } => Some(y),
        _ => None,
    })
}

fn draw_series(chart: &mut Chart<'_, '_>, series: &Series, colour: RGBColor, x: &Span, y: &Span) -> Drawn {
    let shown: Vec<(f64, f64)> = series
        .points
        .iter()
        .copied()
        .filter(|p| x.shows(p.0) && y.shows(p.1))
        .collect();
    let line = colour.stroke_width(2);
    match series.mark {
        Mark::LineAndDots => {
            chart.draw_series(LineSeries::new(shown.iter().copied(), line))?;
            chart.draw_series(shown.iter().map(|&p| Circle::new(p, 4, colour.filled())))?;
        }
        Mark::Steps => {
            // A distribution starts at 0 below its first value and stays level up to the next.
            let mut corners = Vec::with_capacity(shown.len() * 2 + 1);
            corners.extend(shown.first().map(|p| (p.0, y.range().start.max(0.0))));
            for (i, &point) in shown.iter().enumerate() {
                if i > 0 {
                    corners.push((point.0, shown[i - 1].1));
                }
                corners.push(point);
            }
            chart.draw_series(LineSeries::new(corners, line))?;
        }
        Mark::Line => {
            chart.draw_series(LineSeries::new(shown, line))?;
        }
        Mark::Stairs => {
            let mut corners = Vec::with_capacity(shown.len() * 2);
            for (i, &point) in shown.iter().enumerate() {
                if i > 0 {
                    corners.push((point.0, shown[i - 1].1));
                }
                corners.push(point);
            }
            chart.draw_series(LineSeries::new(corners, line))?;
        }
        Mark::Bars => {
            let (half, xs, ys) = (half_bar(series), x.range(), y.range());
            // On a logarithmic axis there is no 0: bars then stand on its lower end.
            let ground = 0f64.clamp(ys.start, ys.end);
            chart.draw_series(shown.iter().map(|&(at, height)| {
                let corners = [
                    ((at - half).max(xs.start), ground),
                    ((at + half).min(xs.end), height),
                ];
                Rectangle::new(corners, colour.mix(0.6).filled())
            }))?;
        }
        Mark::Dots => {
            chart.draw_series(
                shown
                    .iter()
                    .map(|&p| Circle::new(p, 4, colour.mix(0.75).filled())),
            )?;
        }
    }
    Ok(())
}

fn draw_guide(chart: &mut Chart<'_, '_>, guide: &Guide, x: &Span, y: &Span) -> Drawn {
    let (xs, ys) = (x.range(), y.range());
    let dashed = |chart: &mut Chart<'_, '_>, points: Vec<(f64, f64)>, colour: RGBColor| -> Drawn {
        chart.draw_series(DashedLineSeries::new(points, 6, 4, colour.stroke_width(2)))?;
        Ok(())
    };
    match *guide {
        Guide::Horizontal { y: at, .. } if y.shows(at) => {
            dashed(chart, vec![(xs.start, at), (xs.end, at)], GUIDE_LINE)
        }
        Guide::Vertical { x: at, .. } if x.shows(at) => {
            dashed(chart, vec![(at, ys.start), (at, ys.end)], GUIDE_LINE)
        }
        Guide::Band { from, to, .. } if from.is_finite() && to.is_finite() => {
            let corners = [(from.max(xs.start), ys.start), (to.min(xs.end), ys.end)];
            chart.draw_series([Rectangle::new(corners, GUIDE_BAND.mix(0.22).filled())])?;
            Ok(())
        }
        Guide::Slope { slope, .. } => dashed(chart, line(slope, x, y), GUIDE_SLOPE),
        Guide::Wedge { low, high, .. } => {
            let mut outline = ray(low, x, y);
            outline.extend(ray(high, x, y).into_iter().rev());
            chart.draw_series([Polygon::new(outline, WEDGE.mix(0.18).filled())])?;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Points of y = slope * x over the width of the frame, held at its edges: many on mixed scales, where it is a
/// curve, and always those where it meets the frame, so that the cut is exact.
fn ray(slope: f64, x: &Span, y: &Span) -> Vec<(f64, f64)> {
    let ys = y.range();
    let parts = if x.same_scale(y) { 1 } else { 64 };
    let mut stops: Vec<f64> = (0..=parts)
        .map(|i| x.at(f64::from(i) / f64::from(parts)))
        .collect();
    stops.extend(
        [ys.start / slope, ys.end / slope]
            .into_iter()
            .filter(|s| x.shows(*s)),
    );
    stops.sort_by(f64::total_cmp);
    stops
        .into_iter()
        .map(|at| (at, (slope * at).clamp(ys.start, ys.end)))
        .collect()
}

/// The part of [`ray`] inside the frame, for a line.
fn line(slope: f64, x: &Span, y: &Span) -> Vec<(f64, f64)> {
    let inside = |p: &(f64, f64)| (slope * p.0 - p.1).abs() <= p.1.abs() * 1e-9;
    ray(slope, x, y).into_iter().filter(inside).collect()
}

/// Draws swatches and names under the title; returns the height it took.
fn draw_legend(plot: &Plot, root: &Area<'_>) -> Result<i32, Box<dyn Error>> {
    let (mut x, mut y) = (MARGIN, TITLE_HEIGHT + 8);
    let mut place = |text: &str| {
        let width = 34 + (text.chars().count() as f64 * 7.2) as i32;
        if x > MARGIN && x + width > WIDTH as i32 - MARGIN {
            (x, y) = (MARGIN, y + LEGEND_ROW);
        }
        let at = (x, y);
        x += width;
        at
    };
    let (mut bottom, mut wedges) = (None, 0u8);
    let entries = plot
        .series
        .iter()
        .enumerate()
        .map(|(i, s)| (clean(&s.name), Ok((s.mark, colour(i)))));
    let guides = plot.guides.iter().map(|g| (clean(g.label()), Err(g)));
    for (name, kind) in entries.chain(guides).filter(|(name, _)| !name.is_empty()) {
        let (x, y) = place(&name);
        bottom = Some(y);
        let (left, right) = ((x, y), (x + 18, y));
        match kind {
            Ok((Mark::Bars, colour)) => root.draw(&swatch(x, y, colour.mix(0.6)))?,
            Ok((Mark::Dots, colour)) => root.draw(&Circle::new((x + 9, y), 4, colour.filled()))?,
            Ok((mark, colour)) => {
                root.draw(&PathElement::new(vec![left, right], colour.stroke_width(2)))?;
                if mark == Mark::LineAndDots {
                    root.draw(&Circle::new((x + 9, y), 4, colour.filled()))?;
                }
            }
            Err(Guide::Band { .. }) => root.draw(&swatch(x, y, GUIDE_BAND.mix(0.4)))?,
            Err(Guide::Wedge { .. }) => {
                // Inner wedges are drawn over outer ones, so they look darker; their swatches too.
                wedges += 1;
                root.draw(&swatch(
                    x,
                    y,
                    WEDGE.mix(f64::from(wedges).mul_add(0.22, 0.02).min(1.0)),
                ))?;
            }
            Err(guide) => {
                let colour = if matches!(guide, Guide::Slope { .. }) {
                    GUIDE_SLOPE
                } else {
                    GUIDE_LINE
                };
                for dash in [(x, x + 7), (x + 11, x + 18)] {
                    let points = vec![(dash.0, y), (dash.1, y)];
                    root.draw(&PathElement::new(points, colour.stroke_width(2)))?;
                }
            }
        }
        root.draw(&Text::new(
            name,
            (x + 23, y),
            ink(13).pos(Pos::new(HPos::Left, VPos::Center)),
        ))?;
    }
    Ok(bottom.map_or(0, |y| y + LEGEND_ROW / 2 - TITLE_HEIGHT))
}

fn swatch(x: i32, y: i32, colour: RGBAColor) -> Rectangle<(i32, i32)> {
    Rectangle::new([(x, y - 6), (x + 18, y + 6)], colour.filled())
}

/// Names come from users: characters that XML forbids become spaces, endless ones are cut.
fn clean(text: &str) -> String {
    let allowed = |c: char| {
        if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') {
            ' '
        } else {
            c
        }
    };
    let mut short: String = text.chars().take(90).map(allowed).collect();
    if text.chars().count() > 90 {
        short.push('…');
    }
    short
}
