//! A small Markdown: headings, paragraphs, `-` lists, fenced and inline code, bold. All else is text.

use super::escape::escape;

/// As HTML, escaped.
pub fn html(text: &str) -> String {
    let (mut out, mut paragraph, mut list) = (String::new(), Vec::<&str>::new(), Vec::<String>::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let item = line.strip_prefix("- ");
        let is_more_of_item = !list.is_empty() && line.starts_with("  ") && !line.trim().is_empty();
        if is_more_of_item {
            if let Some(last) = list.last_mut() {
                *last += " ";
                *last += line.trim();
            }
            continue;
        }
        if item.is_none() {
            end_list(&mut list, &mut out);
        }
        let hashes = line.bytes().take_while(|&b| b == b'#').count();
        let heading = (1..=4)
            .contains(&hashes)
            .then(|| line[hashes..].strip_prefix(' '))
            .flatten();
        if item.is_some() || heading.is_some() || line.trim().is_empty() || line.starts_with("```") {
            end_paragraph(&mut paragraph, &mut out);
        }
        if let Some(item) = item {
            list.push(item.to_owned());
        } else if let Some(heading) = heading {
            out += &format!("<h{hashes}>{}</h{hashes}>\n", inline(heading));
        } else if line.starts_with("```") {
            let code: Vec<&str> = lines.by_ref().take_while(|l| !l.starts_with("```")).collect();
            out += &format!("<pre><code>{}</code></pre>\n", escape(&code.join("\n")));
        } else if !line.trim().is_empty() {
            paragraph.push(line.trim());
        }
    }
    end_list(&mut list, &mut out);
    end_paragraph(&mut paragraph, &mut out);
    out
}

fn end_paragraph(paragraph: &mut Vec<&str>, out: &mut String) {
    if !paragraph.is_empty() {
        *out += &format!("<p>{}</p>\n", inline(&paragraph.join(" ")));
        paragraph.clear();
    }
}

fn end_list(list: &mut Vec<String>, out: &mut String) {
    if !list.is_empty() {
        *out += "<ul>\n";
        out.extend(list.drain(..).map(|item| format!("<li>{}</li>\n", inline(&item))));
        *out += "</ul>\n";
    }
}

/// Code between backticks, bold between pairs of stars; a mark without its partner is text.
fn inline(text: &str) -> String {
    let mut out = String::new();
    for (i, part) in pieces(text, "`").enumerate() {
        if i % 2 == 1 {
            out += &format!("<code>{}</code>", escape(part));
            continue;
        }
        for (j, part) in pieces(part, "**").enumerate() {
            let part = escape(part);
            out += &if j % 2 == 1 {
                format!("<strong>{part}</strong>")
            } else {
                part
            };
        }
    }
    out
}

/// The text between marks: outside, inside, outside, and so on; a last mark without a partner stays in the text.
fn pieces<'a>(text: &'a str, mark: &'a str) -> impl Iterator<Item = &'a str> + 'a {
    let pairs = text.matches(mark).count() / 2 * 2;
    text.splitn(pairs + 1, mark)
}

/// Markdown for a renderer that takes tags for tags: `<` and `&` outside of code stand for themselves.
pub fn safe(text: &str) -> String {
    let mut fenced = false;
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if line.starts_with("```") {
            fenced = !fenced;
        }
        if fenced || line.starts_with("```") {
            out += line;
            continue;
        }
        for (i, part) in pieces(line, "`").enumerate() {
            if i % 2 == 1 {
                out += &format!("`{part}`");
            } else {
                out += &part.replace('&', "&amp;").replace('<', "&lt;");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_knows() {
        let text = "# A\nOne **two**\nthree `a<b`.\n\n- x\n  y\n- z\n```\n<c>\n```\n2 ** 3 ` 4";
        let want = "<h1>A</h1>\n<p>One <strong>two</strong> three <code>a&lt;b</code>.</p>\n<ul>\n<li>x y</li>\n\
                    <li>z</li>\n</ul>\n<pre><code>&lt;c&gt;</code></pre>\n<p>2 ** 3 ` 4</p>\n";
        assert_eq!(html(text), want);
    }

    #[test]
    fn tags_are_text() {
        assert_eq!(html("<b> & #x"), "<p>&lt;b&gt; &amp; #x</p>\n");
        assert_eq!(
            safe("<b> & `a<b` <\n```\n<c>\n```\n<"),
            "&lt;b> &amp; `a<b` &lt;\n```\n<c>\n```\n&lt;"
        );
    }
}
