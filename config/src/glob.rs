//! Matching a text against a glob. What a glob is matched against is left to `patterns`.

/// What a `*` means that stands alone between dots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoneStar {
    /// Exactly one path segment.
    OneSegment,
    /// One or more path segments.
    ManySegments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Literal(char),
    AnyCharacter,
    /// Any text, also none.
    AnyText,
    /// One or more characters.
    SomeText,
    /// One or more characters, none of them a dot.
    Segment,
}

/// A glob ready for matching.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Glob(Vec<Token>);

impl Glob {
    /// A glob over dotted paths.
    pub(crate) fn path(glob: &str, star: LoneStar) -> Self {
        let mut tokens = Vec::new();
        for (index, segment) in glob.split('.').enumerate() {
            if index > 0 {
                tokens.push(Token::Literal('.'));
            }
            match (segment, star) {
                ("*", LoneStar::OneSegment) => tokens.push(Token::Segment),
                ("*", LoneStar::ManySegments) => tokens.push(Token::SomeText),
                _ => tokens.extend(segment.chars().map(token)),
            }
        }
        Self(tokens)
    }

    /// A glob over plain text: `*` is any text, dots included.
    pub(crate) fn text(glob: &str) -> Self {
        Self(glob.chars().map(token).collect())
    }

    /// Whether the whole text matches. Takes (tokens x characters) steps at most, whatever the glob.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let text: Vec<char> = text.chars().collect();
        // reached[n]: the tokens so far can match exactly the first n characters.
        let mut reached = vec![false; text.len() + 1];
        reached[0] = true;
        for token in &self.0 {
            let mut next = vec![false; text.len() + 1];
            next[0] = reached[0] && *token == Token::AnyText;
            for (index, character) in text.iter().enumerate() {
                next[index + 1] = match token {
                    Token::Literal(wanted) => reached[index] && wanted == character,
                    Token::AnyCharacter => reached[index],
                    Token::AnyText => reached[index + 1] || next[index],
                    Token::SomeText => reached[index] || next[index],
                    Token::Segment => (reached[index] || next[index]) && *character != '.',
                };
            }
            reached = next;
        }
        reached[text.len()]
    }
}

fn token(character: char) -> Token {
    match character {
        '*' => Token::AnyText,
        '?' => Token::AnyCharacter,
        other => Token::Literal(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_star_is_one_segment_or_many() {
        let one = Glob::path("layers.*", LoneStar::OneSegment);
        assert!(one.matches("layers.10") && !one.matches("layers.1.mlp") && !one.matches("layers."));
        let many = Glob::path("*.norm", LoneStar::ManySegments);
        assert!(many.matches("layers.0.norm") && many.matches("a.norm") && !many.matches("norm"));
        assert!(!many.matches(".norm"));
    }

    #[test]
    fn a_star_beside_other_text_is_any_text() {
        let glob = Glob::path("model.lay*", LoneStar::OneSegment);
        assert!(glob.matches("model.lay") && glob.matches("model.layers") && glob.matches("model.layers.0"));
    }

    #[test]
    fn a_question_mark_is_exactly_one_character() {
        let glob = Glob::path("layers.?", LoneStar::OneSegment);
        assert!(glob.matches("layers.1") && !glob.matches("layers.10") && !glob.matches("layers."));
    }

    #[test]
    fn other_characters_stand_for_themselves() {
        assert!(!Glob::text("a.c").matches("abc"));
        assert!(Glob::text("a[b]c").matches("a[b]c"));
        assert!(Glob::text("torch.nn.*.Linear").matches("torch.nn.modules.linear.Linear"));
    }

    #[test]
    fn many_stars_over_a_long_text_end_quickly() {
        let glob = Glob::text(&"*a".repeat(40));
        assert!(!glob.matches(&"ab".repeat(2000)));
    }
}
