"""The course as a web site: chapters with their stored outputs, exercises, guides and the planner, built without a network."""
