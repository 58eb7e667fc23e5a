#include <gtest/gtest.h>

#include "support/csv.h"
#include "support/text.h"

namespace shadowgraph {
namespace {

constexpr std::string_view kWhole = "plain gr\xC3\xBC\xC3\x9F \xE5\xB1\x82 \xF0\x9F\x98\x80";

TEST(Printable, WhatCanBePrintedStays) {
  EXPECT_EQ(utf8_text(kWhole), kWhole);
  EXPECT_EQ(xml_text(kWhole), kWhole);
  EXPECT_EQ(terminal_text(kWhole), kWhole);
  EXPECT_EQ(terminal_text("a\tb\nc"), "a\tb\nc");
}

TEST(Printable, OneByteIsTakenOfWhatIsNoUtf8) {
  // Lone continuation byte, overlong slash, surrogate, beyond U+10FFFF, truncated sequence.
  for (const std::string_view bad :
       {"\x80", "\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE5\xB1"}) {
    EXPECT_EQ(utf8_text(bad), std::string(bad.size(), '?'));
    EXPECT_EQ(xml_text(bad), std::string(bad.size(), '?'));
  }
  EXPECT_EQ(terminal_text("a\xFFz"), "a\\xffz");
  EXPECT_EQ(plain_text("\xC0\x8A\xC0\xA2"), "????");  // overlong newline, overlong quote
}

TEST(Printable, XmlHasNoMarkupAndNoControls) {
  EXPECT_EQ(xml_text("<a href=\"x\" b='y'>&amp;"), "&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;amp;");
  EXPECT_EQ(xml_text(std::string_view("a\0b\x1b\n\x7f", 6)), "a b   ");
  EXPECT_EQ(xml_text("\xC2\x85\xE2\x80\xAE\xEF\xBF\xBF\xE2\x80\xA8"),
            "    ");  // NEL, an override, a noncharacter, a line separator
}

TEST(Printable, PlainTextIsOneLine) {
  EXPECT_EQ(plain_text("a\nb\x7f\xE2\x80\xAE"
                       "c\xFF"),
            "a b  c?");
  EXPECT_EQ(plain_text(kWhole), kWhole);
}

TEST(Printable, TerminalsAreNotSteered) {
  EXPECT_EQ(terminal_text("\x1b[31mred\x07"), "\\u001b[31mred\\u0007");
  EXPECT_EQ(terminal_text("\xC2\x9B"
                          "31m\r\xE2\x80\xAE"
                          "abc\x7f"),
            "\\u009b31m\\u000d\\u202eabc\\u007f");
  EXPECT_EQ(terminal_text(std::string_view("\0", 1)), "\\u0000");
}

TEST(Printable, LogsAreNotCommanded) {
  EXPECT_EQ(terminal_text("::warning file=a::b"), "\\u003a:warning file=a::b");
  EXPECT_EQ(terminal_text("ok\n \t::stop-commands::x\naten::add"), "ok\n \t\\u003a:stop-commands::x\naten::add");
  EXPECT_EQ(terminal_text("a ##vso[task.setvariable]b ##[group] ### title"),
            "a \\u0023#vso[task.setvariable]b \\u0023#[group] ### title");
}

TEST(Printable, CsvFieldsAreNoFormulas) {
  Csv csv("a,b,c,d,e,f");
  for (const char* field : {"=HYPERLINK(\"x\")", "+1", "-1+1", "@SUM(1)", "a=b"}) csv.text(field);
  csv.number(-5);
  csv.end();
  EXPECT_EQ(csv.take(), "a,b,c,d,e,f\n\"'=HYPERLINK(\"\"x\"\")\",'+1,'-1+1,'@SUM(1),a=b,-5\n");
}

TEST(Printable, CsvFieldsAreQuotedAndEscaped) {
  Csv csv({"a,b", "say \"hi\"", "two\nlines", "\x1b[0m", "plain"});
  EXPECT_EQ(csv.take(), "\"a,b\",\"say \"\"hi\"\"\",\"two\nlines\",\\u001b[0m,plain\n");
}

}  // namespace
}  // namespace shadowgraph
