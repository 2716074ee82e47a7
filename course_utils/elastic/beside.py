"""What a process runs first that a rank starts beside itself (`spawn_beside`): it ends with the rank."""

from course_utils.elastic.parent import end_with_parent

end_with_parent()
