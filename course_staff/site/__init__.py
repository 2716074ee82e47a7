"""The course as a web site: chapters with their stored outputs, exercises, guides and what training costs, built offline."""
