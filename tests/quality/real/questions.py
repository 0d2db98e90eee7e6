"""Questions about the Debian Administrator's Handbook (11.20220922), picked before anything was measured.

paragraph: where the fact stands, counted over the paragraphs of texts.handbook(); any of `answers` is right.
"""

QUESTIONS = [
    {"paragraph": paragraph, "question": question, "answers": answers} for paragraph, question, answers in (
        (42, "Who contacted Raphaël in 2003 because he wanted to publish a book on Debian?", ("Makarévitch", "Nat")),
        (70, "What was the first name of Ian Murdock's girlfriend, from which the name Debian was made?", ("Debra",)),
        (75, "Which company did Ian Murdock create to market a distribution derived from Debian?", ("Progeny",)),
        (76, "In which city did Ian Murdock die?", ("San Francisco",)),
        (81, "Who leads the debian-cd team?", ("McIntyre",)),
        (86, "Under whose direction is debian-installer developed?", ("Brulebois",)),
        (91, "Which association manages the hardware and finances of Debian?", ("Software in the Public Interest", "SPI")),
        (95, "Which majority is required to approve an amendment of the Foundation Documents?", ("three-quarter", "three quarter")),
        (135, "Who was the second leader of the Debian project?", ("Bruce Perens", "Perens")),
        (169, "Which command line tool sends bug reports on a Debian package?", ("reportbug",)),
        (191, "Which program lists opportunities for contributing to locally installed packages?", ("how-can-i-help",)),
        (201, "Who is behind Debian Junior?", ("Ben Armstrong",)),
        (202, "Who is behind Debian Edu?", ("Petter Reinholdtsen", "Reinholdtsen")),
        (203, "Who is behind Debian Med?", ("Andreas Tille", "Tille")),
        (217, "Which service did GitLab replace for collaborative package maintenance?", ("FusionForge", "alioth")),
        (225, "About how many mailing lists does Debian host?", ("325",)),
        (239, "What aggregates the articles of Debian contributors' blogs?", ("Planet Debian", "planet.debian")),
        (245, "How many source packages does Debian have?", ("31,000",)),
        (254, "What is buildd the abbreviation of?", ("build daemon",)),
        (280, "Which company manages the sponsorship offer of Debian LTS?", ("Freexian",)),
    )
]
