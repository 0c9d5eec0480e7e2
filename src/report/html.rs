//! One self-contained HTML page: no script, no link to anything outside, legible on paper and in the dark.

use super::escape::escape;
use super::plot::Plot;
use super::table::Table;

const STYLE: &str = include_str!("page.css");

/// A report.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Page {
    /// Its title.
    pub title: String,
    /// The decision it is for (contract, section 1).
    pub question: String,
    /// What every figure depends on: boundary, load, SLO, workload, cache state; name and value.
    pub context: Vec<(String, String)>,
    /// The body.
    pub sections: Vec<Section>,
    /// What the figures may not be used for.
    pub limitations: Vec<String>,
    /// The last line: program and version.
    pub footer: String,
}

/// A part of the body.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Section {
    /// Its heading.
    pub heading: String,
    /// What it shows, in order.
    pub blocks: Vec<Block>,
}

/// A piece of a section.
#[derive(Debug, Clone, PartialEq)]
pub enum Block {
    /// Words.
    Text(String),
    /// Figures.
    Table(Table),
    /// A drawing.
    Plot(Plot),
}

impl Page {
    /// The whole document.
    pub fn html(&self) -> String {
        let title = escape(&self.title);
        let mut html = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
             <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<header>\n<h1>{title}</h1>\n"
        );
        if !self.question.is_empty() {
            html += &format!("<p class=\"question\">{}</p>\n", escape(&self.question));
        }
        if !self.context.is_empty() {
            html += "<dl>\n";
            for (name, value) in &self.context {
                html += &format!("<div><dt>{}</dt><dd>{}</dd></div>\n", escape(name), escape(value));
            }
            html += "</dl>\n";
        }
        html += "</header>\n";
        for section in &self.sections {
            html += &format!("<section>\n<h2>{}</h2>\n", escape(&section.heading));
            html.extend(section.blocks.iter().map(Block::html));
            html += "</section>\n";
        }
        if !self.limitations.is_empty() {
            html += "<section>\n<h2>Limitations</h2>\n<ul>\n";
            html.extend(
                self.limitations
                    .iter()
                    .map(|l| format!("<li>{}</li>\n", escape(l))),
            );
            html += "</ul>\n</section>\n";
        }
        html += &format!(
            "<footer>{}</footer>\n</main>\n</body>\n</html>\n",
            escape(&self.footer)
        );
        html
    }
}

impl Block {
    fn html(&self) -> String {
        match self {
            Self::Text(text) => format!("<p>{}</p>\n", escape(text)),
            Self::Table(table) => table.html(),
            Self::Plot(plot) => format!("<figure>\n{}</figure>\n", plot.svg()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::figures::Goodput;

    #[test]
    fn everything_a_user_wrote_is_escaped() {
        let evil = "<script>alert('x' & \"y\")</script>";
        let mut goodput = Goodput::default().plot();
        goodput.title = evil.into();
        goodput.series.push(crate::report::plot::Series {
            name: evil.into(),
            mark: crate::report::plot::Mark::Dots,
            points: vec![(1.0, 1.0)],
        });
        let page = Page {
            title: evil.into(),
            question: evil.into(),
            context: vec![(evil.into(), evil.into())],
            sections: vec![Section {
                heading: evil.into(),
                blocks: vec![Block::Text(evil.into()), Block::Plot(goodput)],
            }],
            limitations: vec![evil.into()],
            footer: evil.into(),
        };
        let html = page.html();
        assert!(!html.contains("<script"), "{html}");
        assert!(html.matches("&lt;script&gt;").count() >= 9);
    }

    #[test]
    fn the_page_needs_nothing_from_outside() {
        let page = Page {
            title: "t".into(),
            ..Page::default()
        };
        let html = page.html();
        assert!(!html.contains("http") && !html.contains("src=") && !html.contains("@import"));
    }
}
